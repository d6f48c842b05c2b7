"""--dry-run and --download of every job that runs a recipe: a plan, exit code 0, and nothing else."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from ray_backfill.cli import runs
from ray_backfill.cli.main import options_of
from ray_backfill.core.errors import InputError
from ray_backfill.recipes import NO_ROOT, load_recipe
from ray_backfill.recipes.run.plan import dry_run
from ray_backfill.workers.settings import Workers
from tests.jobs.conftest import TINY, run_here
from tests.recipes.planning.test_plan import small_recipe


@pytest.mark.parametrize(
    ("job", "shown", "hidden"),
    [
        ("simulate.py", ["train old", "train new", "embed", "fit rm", "kept in total"], []),
        ("train_mcl.py", ["embed", "fit rm"], []),
        ("embed_gallery.py", ["train new", "embed", "gallery.parquet"], ["fit rm"]),
        ("train_backbone.py --model old", ["train old", "finished backbones"], ["train new", "\nembed", "fit rm"]),
        ("train_backbone.py --model ract", ["train old", "train ract"], ["train new", "\nembed"]),
    ],
)
def test_a_dry_run_prints_the_plan_and_does_nothing(
    job: str, shown: list[str], hidden: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("a dry run must not start Ray")

    monkeypatch.setattr("ray.init", refuse)
    name, *more = shlex.split(job)
    out = tmp_path / "run"
    result = run_here(name, *more, "--recipe", "landmarks", "--dry-run", "--out", str(out), *TINY)
    assert result.returncode == 0, result.stderr
    assert "200 train (21 of them for validation), 60 gallery, 16 queries" in result.stdout
    assert "counted in the data" in result.stdout
    for part in shown:
        assert part in result.stdout
    for part in hidden:
        assert part not in result.stdout
    assert not out.exists()


def test_epochs_that_are_left_open_are_planned(tmp_path: Path) -> None:
    asked = ("--recipe", "landmarks", "--dry-run", "--out", str(tmp_path / "run"), "--heads.epochs", "0")
    result = run_here("simulate.py", *asked)
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("fit mcl "))
    assert line.split()[2] == "50"
    assert "a formula" not in line


@pytest.mark.full
def test_a_published_recipe_is_planned_without_its_data(tmp_path: Path) -> None:
    result = run_here("simulate.py", "--recipe", "market1501", "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "12,936 train, 15,913 gallery, 3,368 queries; 224 x 224 x 3" in result.stdout
    assert "as published" in result.stdout
    assert "hours" not in result.stdout, "no machine was measured"


def test_a_recipe_of_unknown_size_still_needs_its_data() -> None:
    result = run_here("simulate.py", "--recipe", "omniglot", "--dry-run")
    assert result.returncode == 2
    assert "this recipe needs --data-root" in result.stderr


def test_a_dry_run_refuses_what_the_run_would_refuse() -> None:
    def planned(*methods: str, model: str | None = None, workers: int = 2) -> str:
        return dry_run(small_recipe(methods), Workers(workers), model=model)

    # Whatever needs no data is checked without them.
    without = load_recipe("cifar100", NO_ROOT)
    without = replace(without, evaluation=replace(without.evaluation, orders=("sigma",)))
    with pytest.raises(InputError, match="order 'sigma' needs a method"):
        dry_run(without, Workers())
    with pytest.raises(InputError, match="unknown method 'magic'"):
        planned("magic")
    with pytest.raises(InputError, match=r"unknown model 'third'; known: old, new, .*bct"):
        planned("rm", model="third")
    with pytest.raises(InputError, match="too few for 64 workers"):
        planned("rm_naive", workers=64)


def test_download_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []
    monkeypatch.setattr(runs, "download", lambda images: fetched.append(images.root))
    for more, expected in (([], []), (["--download"], ["/nowhere"])):
        job = runs.prepared(options_of("simulate", ["--recipe", "cifar100", "--data-root", "/nowhere", *more]).read())
        assert job.settings.images.root == "/nowhere"
        assert fetched == expected


def test_nothing_is_downloaded_to_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "download", lambda images: pytest.fail(f"downloads to {images.root}"))
    result = run_here("simulate.py", "--recipe", "cifar100", "--dry-run", "--download")
    assert result.returncode == 2
    assert "needs --data-root" in result.stderr


def test_what_cannot_be_downloaded_says_where_to_get_it() -> None:
    result = run_here("simulate.py", "--recipe", "market1501", "--data-root", "/nowhere", "--download")
    assert result.returncode == 2
    assert "cannot be downloaded by a program. Where to get it: https://" in result.stderr
