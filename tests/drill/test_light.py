"""Only drill/ray loads Ray; nothing loads torch before it is needed."""

import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "ray_backfill"


def modules(*folders: str) -> list[str]:
    files = [file for folder in folders for file in sorted((PACKAGE / folder).rglob("*.py"))]
    return [
        ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for file in files
    ]


def loaded(names: list[str], *libraries: str) -> set[str]:
    code = f"import sys, {', '.join(names)}\nprint(*({set(libraries)} & set(sys.modules)))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_a_drill_without_its_actors_loads_neither_ray_nor_torch() -> None:
    names = [name for name in modules("drill") if ".ray" not in name.removeprefix("ray_backfill")]
    assert "ray_backfill.drill.run" in names
    assert loaded([*names, "ray_backfill.workers.settings"], "ray", "torch") == set()


def test_actors_load_torch_when_a_model_embeds() -> None:
    assert loaded(modules("drill/ray"), "ray", "torch") == {"ray"}
