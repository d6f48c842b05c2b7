"""The Dockerfiles, read line by line: nothing here builds an image."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {"cpu": ROOT / "deploy" / "Dockerfile.cpu", "cuda": ROOT / "deploy" / "Dockerfile.cuda"}
CONSTRAINTS = {"cpu": "constraints.txt", "cuda": "constraints-gpu.txt"}
# Those of the Dockerfile reference that have a use here.
KNOWN = {"ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "HEALTHCHECK", "LABEL", "RUN", "USER", "WORKDIR"}


def instructions(text: str) -> list[tuple[str, str]]:
    """Word and arguments of each instruction, without comments; lines that a backslash continues are one."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    lines = re.sub(r"\\\n\s*", "", kept).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps a file out of the build: the last line that fits decides."""
    fits = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = re.sub(r"^!?(\*\*/)?", lambda start: "*/" if start[1] else "/", line)
        if line[:1] not in ("", "#") and any(fnmatch(f"/{part}", pattern) for part in (path, *Path(path).parents)):
            fits = line[0] != "!"
    return fits


def problems(text: str) -> list[str]:
    """What keeps a Dockerfile from being built from this checkout, or makes its image unsafe."""
    read = instructions(text)
    wrong = [f"no instruction: {word}" for word, _ in read if word not in KNOWN]
    first = next((word for word, _ in read if word != "ARG"), "")
    wrong += [] if first == "FROM" else ["it does not begin with FROM"]
    user = next((rest for word, rest in reversed(read) if word == "USER"), "root")
    wrong += [] if re.fullmatch(r"[1-9]\d*", user) else [f"runAsNonRoot needs a number and not {user}"]
    wrong += [f"{word} {rest}" for word, rest in read if word == "ADD" or "://" in rest]
    for rest in (rest for word, rest in read if word == "COPY"):
        for source in rest.split()[:-1]:
            if not (ROOT / source).exists():
                wrong.append(f"there is no {source}")
            elif ignored(source):
                wrong.append(f".dockerignore has {source}")
    return wrong


@pytest.mark.parametrize("kind", FILES)
def test_an_image_can_be_built_from_the_checkout_and_does_not_run_as_root(kind: str) -> None:
    text = FILES[kind].read_text()
    assert problems(text) == []
    read = instructions(text)
    arguments = dict(rest.split("=", 1) for word, rest in read if word == "ARG" and "=" in rest)
    installed = " ".join(rest for word, rest in read if word == "RUN")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert arguments["EXTRAS"] in project["optional-dependencies"]
    assert f'pip install --constraint {CONSTRAINTS[kind]} ".[$EXTRAS]"' in installed
    copied = {source for word, rest in read if word == "COPY" for source in rest.split()[:-1]}
    assert copied >= {CONSTRAINTS[kind], "jobs", "ray_backfill", project["readme"], *project["license-files"]}
    assert f"-f deploy/{FILES[kind].name} -t ray-backfill:{project['version']}-{kind} ." in text.splitlines()[0]


def test_both_images_have_the_same_python() -> None:
    versions = {kind: set(re.findall(r"python:?(3\.\d+)", file.read_text())) for kind, file in FILES.items()}
    assert versions == {"cpu": {"3.11"}, "cuda": {"3.11"}}


def test_the_context_has_nothing_else() -> None:
    assert [
        path for path in (".git", ".venv", "runs/demo", "tests", "ray_backfill/core/__pycache__") if not ignored(path)
    ] == []
    assert not ignored("ray_backfill/core/stages.py")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("INSTALL x", "no instruction: INSTALL"),
        ("USER root", "and not root"),
        ("USER 0", "and not 0"),
        ("ADD https://example.org/x.tar /x", "ADD https"),
        ("COPY ray_backfil app", "there is no ray_backfil"),
        ("COPY tests tests", ".dockerignore has tests"),
        ("RUN pip install \\\n    --index-url https://example.org x", "RUN pip install --index-url"),
    ],
)
def test_what_is_wrong_is_found(line: str, says: str) -> None:
    text = FILES["cpu"].read_text()
    (problem,) = problems(f"{text}\n{line}\n")
    assert says in problem
