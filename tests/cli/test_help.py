"""Help: short first pages, and a text of its own for every option."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import pytest

from ray_backfill.cli.commands import measures, samples
from ray_backfill.cli.main import COMMANDS, group_help, options_of, page
from ray_backfill.compare.report.verdict import NOT_OF_DRILL
from ray_backfill.engine.merges import all_merges
from ray_backfill.engine.orders import all_orders
from ray_backfill.learn.methods import all_methods
from ray_backfill.recipes import all_recipes
from tests.command import Command

HEAVY = "{'torch', 'ray', 'matplotlib', 'sklearn', 'pandas', 'cyclopts', 'transformers', 'faiss'}"
# Command lines whose options differ, and what each needs to be read at all.
LINES = [
    ("simulate", ["--data", "my_embeddings"]),
    ("simulate", ["--old-gallery", "old.npy", "--new-gallery", "new.npy"]),
    ("simulate", ["--old", "hf:a", "--new", "hf:b", "--texts", "texts.csv"]),
    ("simulate", []),
    ("simulate", ["--recipe", "gldv2", "--data-root", "/nowhere"]),
    ("simulate", ["--recipe", "image_folder", "--data-root", "/nowhere"]),
    ("simulate", ["--recipe", "manifest", "--data-root", "/nowhere"]),
    ("simulate", ["--recipe", "omniglot", "--data-root", "/nowhere"]),
    ("simulate", ["--recipe", "cifar100", "--data-root", "/nowhere"]),
    ("simulate", ["--recipe", "vggface2", "--data-root", "/nowhere"]),
    ("simulate", ["--scale", "full"]),
    ("drill", ["--data", "my_embeddings"]),
    ("drill", ["--old", "hf:a", "--new", "hf:b", "--images", "images"]),
    ("drill", []),
    ("train", ["--model", "old"]),
    ("embed", ["--old", "hf:a", "--new", "hf:b", "--texts", "texts.csv"]),
    ("embed", []),
    ("fit", ["--data", "my_embeddings"]),
    ("fit", ["--old", "hf:a", "--new", "hf:b", "--texts", "texts.csv"]),
    ("fit", []),
    ("reproduce", ["--recipe", "landmarks"]),
    ("measure", ["--new", "hf:a"]),
    ("import", ["--out", "my_embeddings"]),
    ("forecast", ["my_embeddings"]),
    ("forecast", ["--old", "hf:a", "--new", "hf:b", "--texts", "texts.csv"]),
]
# Commands with a positional argument, whose text stands on their first pages.
POSITIONAL = (
    *(("doctor", ["my_embeddings"]), ("sample", ["my_embeddings"]), ("report", ["runs/mine"])),
    *(("export", ["runs/mine"]), ("plan", ["runs/mine"])),
)


@cache
def full_help(command: str, arguments: tuple[str, ...]) -> str:
    """Everything that the command says about its options."""
    return group_help(command, list(arguments), "all")


@cache
def texts_of(kind: type) -> dict[str, str]:
    """Field -> the docstring below it, as the source says, over all base classes."""
    found: dict[str, str] = {}
    for base in reversed([each for each in kind.__mro__ if is_dataclass(each)]):
        (body,) = [node for node in ast.parse(inspect.getsource(base)).body if isinstance(node, ast.ClassDef)]
        for node, below in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                has_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                found[node.target.id] = inspect.cleandoc(below.value.value) if has_text else ""  # type: ignore[union-attr]
    return found


def texts_in(job: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(option, text) of every field that is not a group itself."""
    flat = {"settings", "fits", "evaluation", "place", "experiment", "columns"}
    for each in fields(job):
        value = getattr(job, each.name)
        name = f"{prefix}{each.name}"
        if is_dataclass(value):
            yield from texts_in(value, prefix if each.name in flat else f"{name}.")
        else:
            yield name, texts_of(type(job))[each.name]  # type: ignore[arg-type]


@pytest.mark.parametrize(("command", "arguments"), LINES, ids=lambda v: v if isinstance(v, str) else " ".join(v))
def test_every_option_has_its_own_text(command: str, arguments: list[str]) -> None:
    shown = full_help(command, tuple(arguments))
    for name, text in texts_in(options_of(command, arguments).read()):
        option = "--" + name.replace("_", "-")
        if option in {"forecast": samples.HIDDEN, "measure": measures.HIDDEN}.get(command, ()):
            continue
        assert len(text) > 10, f"{command} {option} has no text"
        # The text of the option alone, up to its default.
        found = re.search(
            rf"^  {re.escape(option)}[ ,\n](.*?)(?=^  -(?!\S*no-)|\Z|^\S)", shown, re.MULTILINE | re.DOTALL
        )
        assert found, option
        said = " ".join(found.group(1).split())
        assert f"{' '.join(text.split())} (" in said or said.endswith(" ".join(text.split())), (option, text, said)


@pytest.mark.parametrize(("command", "arguments"), LINES, ids=lambda v: v if isinstance(v, str) else " ".join(v))
def test_every_group_has_a_heading(command: str, arguments: list[str]) -> None:
    for group in full_help(command, tuple(arguments)).split("\n\n"):
        title, heading, *_ = group.splitlines()
        assert title == "run" or not heading.strip().startswith("--"), group


@pytest.mark.parametrize("command", COMMANDS)
def test_first_pages_are_short_and_name_options_and_groups_that_there_are(command: str) -> None:
    text = page(command)
    lines = text.splitlines()
    assert len(lines) <= 75
    assert max(map(len, lines)) <= 90
    assert [line for line in lines if line.startswith(("  ray-backfill", "    ray-backfill"))], (
        "an example on its own line"
    )
    shown = "".join(full_help(name, tuple(arguments)) for name, arguments in [*LINES, *POSITIONAL] if name == command)
    for option in re.findall(r"(?<![\w-])--[a-z][\w-]*(?:\.[\w-]+)*", text):
        assert option in ("--help", *shown.replace(",", " ").split()), option
    if "--help GROUP" in text:
        listed = re.split(r"--help GROUP\n", text)[1]
        groups = [line.strip().split("  ")[0].split(", ") for line in listed.splitlines()]
        for name in (name for line in groups for name in line):
            for arguments in (line for each, line in LINES if each == command):
                if name in ("all", "methods", "orders", "merges", "recipes") or re.search(
                    rf"^{name}[.\n]", full_help(command, tuple(arguments)), re.MULTILINE
                ):
                    break
            else:
                pytest.fail(f"{command} has no group {name}")


def test_a_group_of_one_kind_of_a_command_has_help_without_the_words_of_that_kind() -> None:
    of_texts = ["--texts", "texts.csv"]
    assert group_help("simulate", [], "items") == group_help("simulate", of_texts, "items")
    for arguments in ([], ["--data", "my_embeddings"], of_texts):  # whatever else was typed
        assert "--gallery.items" in group_help("simulate", arguments, "gallery")


def test_help_of_a_group_is_the_same_in_a_wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = group_help("simulate", [], "heads")
    monkeypatch.setenv("COLUMNS", "200")
    assert group_help("simulate", [], "heads") == expected


def test_help_of_an_option_fills_its_lines_and_shows_no_empty_default() -> None:
    shown = group_help("simulate", [], "run")
    text = shown[shown.index("  --slices") : shown.index("  --order-seed")]
    assert text.splitlines()[1:] == [
        "        Columns of the queries by which to split them: text, true/false values",
        "        or numbers. Default: group, if there is one.",
    ]
    assert "(default: )" not in shown
    assert "None)" not in shown


def test_names_are_listed_where_they_are_chosen() -> None:
    shown = page("simulate").replace(",", " ").split()
    for names in (all_orders(), all_merges()):
        assert set(names) <= set(shown)
    recommended = [method.name for method in all_methods().values() if method.is_recommended]
    assert set(recommended) <= set(shown), "there are too many methods to name all"
    listed = [line.split(":")[0] for line in group_help("simulate", [], "methods").splitlines() if line[0] != " "]
    assert listed == list(all_methods())
    assert set(all_recipes()) <= set(page("embed").replace(",", " ").split())
    for command in COMMANDS:
        assert f"  {command} " in page("overview")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; sys.argv[0] = 'ray-backfill'; from ray_backfill.cli.main import main\n"
        f"try: main()\nfinally: print({HEAVY} & set(sys.modules))"
    )
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_help_loads_nothing_heavy() -> None:
    for arguments in (["--help"], ["simulate", "--help"], ["--version"]):
        assert run(*arguments).stdout.rstrip().endswith("set()"), arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulat"], "unknown command 'simulat'; did you mean simulate?"),
        (["simulate", "--methods", "magic", "--data", "nowhere"], "unknown method 'magic'; known: old, new"),
        (["simulate", "--orders", "alphabetical"], "unknown order 'alphabetical'"),
        (["simulate", "--old", "hf:a", "--new", "hf:b"], "give --texts or --images: what the two models embed"),
        (["simulate", "--help", "nothing"], "unknown group of options 'nothing'; known: run, images"),
        (["reproduce", "--recipe", "nope"], "unknown recipe 'nope'"),
        (["report", "nowhere"], "nowhere holds no results"),
    ],
)
def test_wrong_words_are_told_before_torch_or_ray_are_loaded(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not {"torch", "ray", "matplotlib"} & set(re.findall(r"'(\w+)'", result.stdout.splitlines()[-1]))


@pytest.mark.parametrize("source", [[], ["--data", "my_embeddings"]])
def test_a_drill_has_every_option_that_the_next_command_hands_on(source: list[str]) -> None:
    simulate, drill = (
        set(re.findall(r"^  (--[\w.-]+)", "\n".join(options_of(command, source).help().values()), flags=re.MULTILINE))
        for command in ("simulate", "drill")
    )
    assert len(simulate & drill) > 20
    assert simulate - drill - {"--scale"} <= NOT_OF_DRILL


def test_version_and_module(command: Command) -> None:
    assert re.fullmatch(r"ray-backfill \d+\.\d+\.\d+\n", command("--version").out)
    same = subprocess.run([sys.executable, "-m", "ray_backfill", "--help"], capture_output=True, text=True, check=True)
    assert same.stdout.strip() == page("overview")
