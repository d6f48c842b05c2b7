"""The manifests fit the schemas of KubeRay's own definitions, the images, the job scripts, and docs/cluster.md."""

import os
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.runtime_env import RuntimeEnv

from ray_backfill.cli.main import options_of
from ray_backfill.core import __version__
from tests.test_constraints import pins

ROOT = Path(__file__).parents[2]
# From ray-project/kuberay, feeaf72fa (helm-chart/kuberay-operator/crds). It is no part of this repository.
DEFINITIONS = ROOT.parent / "shared" / "kuberay"
FILES = {"RayCluster": ROOT / "deploy" / "raycluster.yaml", "RayJob": ROOT / "deploy" / "rayjob.yaml"}
PAGE = (ROOT / "docs" / "cluster.md").read_text()


def manifest(kind: str) -> Any:
    return yaml.safe_load(FILES[kind].read_text())


def cluster_of(kind: str) -> Any:
    spec = manifest(kind)["spec"]
    return spec if kind == "RayCluster" else spec["rayClusterSpec"]


def pods(kind: str) -> list[Any]:
    """The specification of the head's pod, and that of each group of workers."""
    cluster = cluster_of(kind)
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


@cache
def schema(kind: str) -> Any:
    """The definition of a kind, where a key that it does not name is an error, as for ``kubectl --validate=strict``."""
    if not DEFINITIONS.is_dir():
        pytest.skip(f"KubeRay's definitions are not there ({DEFINITIONS})")
    text = (DEFINITIONS / f"ray.io_{kind.lower()}s.yaml").read_text()
    versions = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]["versions"]
    (read,) = (version["schema"]["openAPIV3Schema"] for version in versions if version["name"] == "v1")
    close(read)
    return read


def close(part: Any) -> None:
    """Refuse other keys wherever a part of a schema names some and does not keep unknown ones."""
    if not isinstance(part, dict):
        return
    if "properties" in part and not part.get("x-kubernetes-preserve-unknown-fields"):
        part.setdefault("additionalProperties", False)
    for inner in (*part.get("properties", {}).values(), part.get("items"), part.get("additionalProperties")):
        close(inner)


def problems(content: Any) -> list[str]:
    """What KubeRay's definition says against a manifest."""
    errors = jsonschema.Draft4Validator(schema(content["kind"])).iter_errors(content)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


def problems_of_environment(text: str) -> list[str]:
    """What Ray says against a runtimeEnvYAML, which is a mere text for KubeRay."""
    try:
        content = yaml.safe_load(text)
        unknown = sorted({*content} - {name for name in RuntimeEnv.known_fields if name[0] != "_"})
        RuntimeEnv(**content)
    except (yaml.YAMLError, TypeError, ValueError) as error:
        return [str(error)]
    return [f"unknown: {name}" for name in unknown]


@pytest.mark.parametrize("kind", FILES)
def test_a_manifest_fits_kuberays_definition(kind: str) -> None:
    assert problems(manifest(kind)) == []


@pytest.mark.parametrize(
    ("kind", "place", "value", "says"),
    [
        ("RayCluster", "workerGroupSpecs.0.minReplica", 2, "'minReplica' was unexpected"),
        ("RayJob", "rayClusterSpec.workerGroupSpecs.0.minReplica", 2, "'minReplica' was unexpected"),
        ("RayCluster", "workerGroupSpecs.0.minReplicas", None, "None is not of type 'integer'"),
        ("RayCluster", "workerGroupSpecs.0.replicas", "2", "'2' is not of type 'integer'"),
        ("RayCluster", "rayversion", "2", "'rayversion' was unexpected"),
        ("RayCluster", "authOptions.mode", "tokens", "'tokens' is not one of"),
        ("RayCluster", "headGroupSpec.rayStartParams.num-cpus", 0, "0 is not of type 'string'"),
        ("RayCluster", "headGroupSpec.template.spec.volumes.0.pvc", {}, "'pvc' was unexpected"),
        ("RayCluster", "headGroupSpec.template.spec.containers.0.volumeMounts.0.mountpath", "/x", "'mountpath' was"),
        ("RayJob", "entryPoint", "python x.py", "'entryPoint' was unexpected"),
        ("RayJob", "runtimeEnvYAML", {"env_vars": {}}, "is not of type 'string'"),
    ],
)
def test_what_does_not_fit_is_found(kind: str, place: str, value: object, says: str) -> None:
    content = manifest(kind)
    *above, last = place.split(".")
    part = content["spec"]
    for key in above:
        part = part[int(key) if key.isdigit() else key]
    part[last] = value
    (problem,) = problems(content)
    assert says in problem


def test_the_jobs_environment_is_one_that_ray_knows() -> None:
    assert problems_of_environment(manifest("RayJob")["spec"]["runtimeEnvYAML"]) == []
    wrong = ("env_var: {A: b}", "env_vars: {A: 1}", "env_vars:\n   A: b\n  C: d", "- env_vars", "pip: 3")
    assert [text for text in wrong if not problems_of_environment(text)] == []


def test_versions_and_images_are_those_of_the_checkout() -> None:
    for kind in FILES:
        assert cluster_of(kind)["rayVersion"] == pins("constraints.txt")["ray"] == pins("constraints-gpu.txt")["ray"]
        assert {container["image"] for pod in pods(kind) for container in pod["containers"]} == {
            f"ray-backfill:{__version__}-cpu"
        }
    assert f"ray-backfill:{__version__}-cuda" in FILES["RayCluster"].read_text()
    assert cluster_of("RayJob") == cluster_of("RayCluster")


def test_every_pod_writes_to_one_disk_and_none_is_root() -> None:
    claim = yaml.safe_load((ROOT / "deploy" / "runs.yaml").read_text())
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (user,) = {
        line
        for kind in ("cpu", "cuda")
        for line in re.findall(r"^USER (\d+)$", (ROOT / "deploy" / f"Dockerfile.{kind}").read_text(), re.M)
    }
    for pod in pods("RayCluster"):
        (volume,) = pod["volumes"]
        assert volume["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
        for container in pod["containers"]:
            assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/shared/runs"}]
        context = pod["securityContext"]
        assert (context["runAsNonRoot"], str(context["runAsUser"]), str(context["fsGroup"])) == (True, user, user)


def checked_job(words: list[str]) -> Path:
    """The folder that ``python SCRIPT OPTIONS`` writes, if the script is there and takes the options."""
    program, script, *options = words
    assert program == "python"
    (command,) = re.findall(r'main\("(\w+)"\)', (ROOT / script.removeprefix("/app/")).read_text())
    out: Path = options_of(command, options).read().out
    return out


def test_the_job_is_that_of_the_page_and_writes_to_the_disk() -> None:
    spec = manifest("RayJob")["spec"]
    words = shlex.split(spec["entrypoint"])
    assert words[1].startswith("/app/jobs/"), "where the image has them; a job's own folder is another one"
    assert checked_job(words).is_relative_to("/shared/runs")
    assert Path(yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]["NUMBA_CACHE_DIR"]).is_relative_to("/shared/runs")
    assert words in [command[command.index("python") :] for command in commands() if "python" in command]


def commands() -> list[list[str]]:
    """The words of each command on the page."""
    blocks = "\n".join(re.findall(r"^    (.*)$", PAGE, re.MULTILINE)).replace("\\\n", "")
    return [words for line in re.split(r"\n|&&", blocks) if (words := shlex.split(line, comments=True))]


def test_what_the_page_types_is_there() -> None:
    from ray.scripts.scripts import cli

    looked = 0
    for words in commands():
        if "python" in words:
            checked_job(words[words.index("python") :])
        if "ray" in words:
            command: Any = cli
            _, *rest = words[words.index("ray") :]
            while hasattr(command, "commands"):
                command, rest = command.commands[rest[0]], rest[1:]
            command.make_context("ray", rest)  # raises where an option is unknown
            looked += 1
    assert looked >= 9
    for path in re.findall(r"deploy/[\w.]+|constraints[\w-]*\.txt", PAGE):
        assert (ROOT / path).is_file(), path
    assert {*re.findall(r"ray-backfill:([\d.]+)-", PAGE)} == {__version__}


@pytest.mark.parametrize("number", range(3))
def test_what_the_page_applies_fits(number: int) -> None:
    typed = re.findall(r"^    (sed .*) \| kubectl apply -f -$", PAGE, re.MULTILINE)
    assert len(typed) == 3
    done = subprocess.run(
        ["sh", "-c", typed[number]], cwd=ROOT, env={**os.environ, "REGISTRY": "r.example/x"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    content = yaml.safe_load(done.stdout)
    cluster = content["spec"].get("rayClusterSpec", content["spec"])
    head, workers = (
        group["template"]["spec"]["containers"][0] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    )
    kind = "cuda" if "cuda" in typed[number] else "cpu"
    assert head["image"] == workers["image"] == f"r.example/x/ray-backfill:{__version__}-{kind}"
    assert workers["resources"]["limits"].get("nvidia.com/gpu") == (1 if kind == "cuda" else None)
    assert "nvidia.com/gpu" not in head["resources"]["limits"]
    assert problems(content) == []
