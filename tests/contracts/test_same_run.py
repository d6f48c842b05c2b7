"""What is the same run: every input of every product is changed in turn; the result changes, or the command refuses."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ray_backfill as rb
from ray_backfill.compare import write as results
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fits import fit_folder
from ray_backfill.compare.report import REPORT_FILES
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import finish_stage, read_json, write_json
from ray_backfill.data import importing
from ray_backfill.data.importing import ColumnNames, import_split
from ray_backfill.data.sources import open_source
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.drill import run as drill
from ray_backfill.drill.settings import LiveSettings
from ray_backfill.forecast import run as forecasting
from ray_backfill.forecast.run import forecast_folder
from ray_backfill.forecast.sample import take_sample
from ray_backfill.forecast.settings import ForecastSettings, SampleSettings
from ray_backfill.learn.training.settings import AdapterSettings, FitSettings
from ray_backfill.workers.settings import Context

EVALUATION = Evaluation(
    methods=("rm_naive", "procrustes_gallery"), orders=("random",), metrics=("nDCG@10", "CMC@1"), points=3
)
METHOD = "procrustes_gallery"


def build(folder: Path) -> Path:
    """A folder with everything that a result can depend on. Judgements and clicks lie beside it."""
    rng = np.random.default_rng(0)
    centre = rng.normal(size=(6, 8))

    def split(rows: int, **more: Any) -> dict[str, Any]:
        label = np.arange(rows) % 6
        old, new = (centre[label] + scale * rng.normal(size=(rows, 8)) for scale in (1.2, 0.9))
        return {"id": np.arange(rows), "old": old, "new": new, "label": label, **more}

    of_gallery: dict[str, Any] = {"tenant": np.arange(60) // 30, "document": np.arange(60) % 8}
    of_gallery["popularity"] = rng.permutation(60) * 1.0
    of_queries = {"tenant": np.arange(24) % 2, "document": np.arange(24) % 8, "weight": 1.0 + np.arange(24) % 3}
    texts = {"gallery": [f"item {i}" for i in range(60)], "queries": [f"query {i}" for i in range(24)]}
    rb.write_folder(folder, split(60), split(24), split(60))
    for name, columns in (("gallery", of_gallery), ("queries", of_queries)):
        for column, of_rows in columns.items():
            put(folder / f"{name}.parquet", column, of_rows)
        put(folder / f"{name}.parquet", "text", texts[name])
    put(folder / "queries.parquet", "lang", ["de", "en", "fr"] * 8)
    put(folder / "queries.parquet", "positives", [[q % 6, q % 6 + 6, q % 6 + 12] for q in range(24)])
    put(folder / "queries.parquet", "grades", [[1.0, 2.0, 3.0]] * 24)
    log = {"id": range(40), "old": vector_column(rng.normal(size=(40, 8)).astype(np.float32))}
    write_parquet(folder / "log.parquet", pa.table(log | {"weight": 1.0 + np.arange(40) % 5}))
    put(folder / "log.parquet", "tenant", np.arange(40) % 2)
    lines = [f"{q} 0 {q % 6 + 6 * n} {n + 1}" for q in range(24) for n in range(3)]
    (folder / "qrels.txt").write_text("\n".join(lines))
    clicks = [f"{q},{q % 6 + 6 * n},{n + q % 4 + 1}" for q in range(24) for n in range(3)]
    (folder / "clicks.csv").write_text("\n".join(["query,item,clicks", *clicks]))
    return folder


def put(path: Path, column: str, values: Any) -> None:
    table = pq.read_table(path)
    if column in table.column_names:
        table = table.drop_columns([column])
    write_parquet(path, table.append_column(column, pa.array(values)))


def values(split: str, column: str, change: Callable[[Any], None]) -> Callable[[Path], None]:
    """Changes values of a column in place."""

    def changed(data: Path) -> None:
        path = data / f"{split}.parquet"
        table = pq.read_table(path)
        found = table[column].to_pylist()
        change(found)
        array = vector_column(np.array(found, np.float32)) if column in ("old", "new") else pa.array(found)
        write_parquet(path, table.set_column(table.column_names.index(column), column, array))

    return changed


def text(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Changes a text file that keeps its size and its time."""

    def changed(data: Path) -> None:
        path, before = data / name, (data / name).stat()
        content = path.read_text()
        assert content.count(old) == 1
        assert len(old) == len(new)
        path.write_text(content.replace(old, new))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return changed


def negate(row: int) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        found[row] = [-value for value in found[row]]

    return change


def give(row: int, value: Any) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        assert found[row] != value
        found[row] = value

    return change


def drop_last_query(data: Path) -> None:
    path = data / "queries.parquet"
    write_parquet(path, pq.read_table(path).slice(0, 23))


@dataclass(frozen=True)
class Change:
    """An input that changes. words: what a refusal says. asked: the settings under which it counts. truth: kind, and
    the name of its file, if there is one. drills: whether a drill can depend on it. samples: whether a sample can."""

    change: Callable[[Path], None]
    words: str
    asked: Mapping[str, Any] = field(default_factory=dict)
    truth: tuple[str, ...] = ("labels",)
    drills: bool = True
    samples: bool = False


CHANGES = {
    "a gallery vector": Change(values("gallery", "old", negate(3)), "gallery", samples=True),
    "a new gallery vector": Change(values("gallery", "new", negate(3)), "gallery"),
    "a query vector": Change(values("queries", "old", negate(3)), "queries", samples=True),
    "a new query vector": Change(values("queries", "new", negate(3)), "queries", samples=True),
    "a query less": Change(drop_last_query, "queries, right answers", samples=True),
    "a label of the gallery": Change(values("gallery", "label", give(3, 5)), "gallery, right answers", samples=True),
    "a label of a query": Change(values("queries", "label", give(3, 5)), "queries, right answers", samples=True),
    "a weight": Change(values("queries", "weight", give(3, 90.0)), "queries, right answers"),
    "a train vector": Change(values("train", "new", negate(3)), "train"),
    "a judgement": Change(
        text("qrels.txt", "10 0 16 3", "10 0 17 3"), "right answers", truth=("qrels", "qrels.txt"), samples=True
    ),
    "a grade of a judgement": Change(
        text("qrels.txt", "10 0 16 3", "10 0 16 9"), "right answers", truth=("qrels", "qrels.txt"), samples=True
    ),
    "a click": Change(text("clicks.csv", "10,16,5", "10,17,5"), "right answers", truth=("clicks", "clicks.csv")),
    "the number of clicks": Change(
        text("clicks.csv", "10,16,5", "10,16,9"), "right answers", truth=("clicks", "clicks.csv")
    ),
    "a grade of the queries": Change(
        values("queries", "grades", give(3, [3.0, 2.0, 1.0])), "queries, right answers", truth=("positives",),
        samples=True,
    ),
    "what comes from one document": Change(
        values("gallery", "document", give(3, 7)), "right answers", truth=("known-item", "document"), samples=True
    ),
    "a vector of the log": Change(values("log", "old", lambda found: found.reverse()), "log", {"orders": ("lazy",)}),
    "a weight of the log": Change(values("log", "weight", give(3, 900.0)), "log", {"orders": ("lazy",)}),
    "the popularity of an item": Change(
        values("gallery", "popularity", give(3, 900.0)), "gallery", {"orders": ("popularity",)}
    ),
    "the tenant of an item": Change(
        values("gallery", "tenant", give(3, 1)), "filter", {"filter": "tenant"}, samples=True
    ),
    "the tenant of a query": Change(
        values("queries", "tenant", give(3, 0)), "filter", {"filter": "tenant"}, samples=True
    ),
    "the tenant in the log": Change(
        values("log", "tenant", lambda found: found.sort()), "log", {"filter": "tenant", "orders": ("lazy",)}
    ),
    "a slice": Change(values("queries", "lang", give(3, "en")), "slices", {"slices": ("lang",)}),
    "a text": Change(values("queries", "text", lambda found: found.reverse()), "texts", drills=False),
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder. Pages, which are made from tables, are not drawn."""
    monkeypatch.setattr(
        results, "write_report", lambda out: [(out / name).write_text("drawn") for name in REPORT_FILES]
    )
    monkeypatch.setattr(forecasting, "write_forecast_report", lambda _: None)
    return build(tmp_path / "data")


def asked(change: Change, data: Path) -> Evaluation:
    kind, *files = change.truth
    words = (kind, *(str(data / name) if (data / name).exists() else name for name in files))
    return replace(EVALUATION, truth=words, **change.asked)


def stored(folder: Path) -> dict[str, Any]:
    """Everything in the tables and texts below a folder."""
    return {
        str(path.relative_to(folder)): pd.read_parquet(path).to_json()
        for path in sorted(folder.rglob("*.parquet"))
        if not path.name.startswith("costs")
    }


def times(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def refused(words: str) -> Any:
    return pytest.raises(InputError, match=rf"different from the earlier run: ([a-z ]+, )*{words}[,)]")


@pytest.mark.parametrize("name", CHANGES)
def test_a_simulation_is_that_of_its_inputs(data: Path, tmp_path: Path, name: str) -> None:
    change, out = CHANGES[name], tmp_path / "out"
    evaluation = asked(change, data)

    def run(to: Path) -> dict[str, Any]:
        return stored(evaluate_folder(data, evaluation, FitSettings(), Context(to)))

    before = run(out)
    seen = times(out)
    assert run(out) == before
    assert times(out) == seen, "the same run computes and writes nothing"
    change.change(data)
    assert run(tmp_path / "fresh") != before, "the input matters"
    with refused(change.words):
        run(out)
    assert times(out) == seen


@pytest.mark.parametrize("name", [name for name, change in CHANGES.items() if change.drills])
def test_a_drill_is_that_of_its_inputs(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What a drill measures is replaced: what counts is whether it is asked to."""
    change, out, live = CHANGES[name], tmp_path / "out", LiveSettings(method=METHOD)
    evaluation, drilled = asked(change, data), list[Path]()

    def conclude(folder: Path, *_: Any) -> Path:
        for table in drill._MADE_AFTER:
            write_parquet(folder / f"{table}.parquet", pa.table({"made": [0]}))
        for name in REPORT_FILES:
            (folder / name).write_text("drawn")
        finish_stage(folder)
        drilled.append(folder)
        return folder

    monkeypatch.setattr("ray_backfill.workers.session.session", nullcontext)
    monkeypatch.setattr(drill, "check_room", lambda *_: (1, False))
    monkeypatch.setattr("ray_backfill.drill.ray.driver.run_drill", lambda *_: None)
    monkeypatch.setattr(drill, "_conclude", conclude)

    def run() -> None:
        drill.drill_folder(data, evaluation, FitSettings(), live, Context(out))

    run()
    run()
    assert len(drilled) == 1, "the same drill is not run again"
    made = read_json(out / "live" / "manifest.json")
    write_json(out / "live" / "manifest.json", made | {"settings": made["settings"] | {"format": 1}})
    with pytest.raises(InputError, match=r"earlier version of ray-backfill: format 1 there.*give --overwrite"):
        run()
    write_json(out / "live" / "manifest.json", made)
    change.change(data)
    with refused(change.words):
        run()
    assert len(drilled) == 1


@pytest.mark.parametrize("name", [name for name, change in CHANGES.items() if change.samples])
def test_a_sample_and_its_forecast_are_those_of_their_inputs(data: Path, tmp_path: Path, name: str) -> None:
    (data / "queries.parquet").write_bytes(without(data / "queries.parquet", "weight"))
    change, sample = CHANGES[name], tmp_path / "sample.parquet"
    how = asked(change, data)
    take_sample(data, sample, 52, SampleSettings(truth=how.truth, filter=how.filter))
    take_sample(data, sample, 0, SampleSettings(), add=2)
    settings, fits = ForecastSettings(("rm_naive",), EVALUATION.orders, ("mAP",), EVALUATION.points), FitSettings()
    forecast_folder(data, sample, (), settings, fits, Context(tmp_path / "run"))
    before, seen = sample.read_bytes(), times(tmp_path / "run")
    change.change(data)
    with refused(change.words):
        take_sample(data, sample, 0, SampleSettings(), add=2)
    with refused(change.words):
        forecast_folder(data, sample, (), settings, fits, Context(tmp_path / "run"))
    assert sample.read_bytes() == before
    assert times(tmp_path / "run") == seen


def without(path: Path, column: str) -> bytes:
    write_parquet(path, pq.read_table(path).drop_columns([column]))
    return path.read_bytes()


def test_a_forecast_is_made_again_from_other_new_vectors(data: Path, tmp_path: Path) -> None:
    """It is never kept, so it cannot be that of other inputs."""
    without(data / "queries.parquet", "weight")
    take_sample(data, tmp_path / "sample.parquet", 40, SampleSettings())
    settings = ForecastSettings(EVALUATION.methods, EVALUATION.orders, ("mAP",), EVALUATION.points)

    def run() -> dict[str, Any]:
        return stored(forecast_folder(data, tmp_path / "sample.parquet", (), settings, FitSettings(), Context(out)))

    out = tmp_path / "run"
    before = run()
    assert run() == before
    listed = pd.read_parquet(tmp_path / "sample.parquet")["id"].tolist()
    values("gallery", "new", negate(listed[0]))(data)
    assert run() != before


@pytest.mark.parametrize("change", ["vector", "label", "settings", "distance"])
def test_a_map_is_that_of_its_inputs(data: Path, tmp_path: Path, change: str) -> None:
    evaluation, fits, out = replace(EVALUATION, methods=("low_rank_query",)), FitSettings(), tmp_path / "out"

    def run() -> None:
        fit_folder(data, evaluation, fits, Context(out))

    run()
    seen = times(out)
    run()
    assert times(out) == seen
    if change == "vector":
        values("train", "new", negate(3))(data)
    elif change == "label":
        values("train", "label", give(3, 5))(data)
    elif change == "settings":
        fits = FitSettings(adapters=AdapterSettings(ridge=0.5))
    else:
        evaluation = replace(evaluation, distance="l2")
    with pytest.raises(InputError, match=r"(different from the earlier run: data|ridge: None there|unit: True there)"):
        run()
    assert times(out) == seen


def test_a_sample_of_an_earlier_version_is_refused_in_one_line(data: Path, tmp_path: Path) -> None:
    without(data / "queries.parquet", "weight")
    sample = tmp_path / "sample.parquet"
    take_sample(data, sample, 52, SampleSettings())
    table = pq.read_table(sample)
    ((name, facts),) = (table.schema.metadata or {}).items()
    known = json.loads(facts)
    older = known["key"]["settings"] | {"format": 1}
    for earlier in (
        {name: value for name, value in known.items() if name != "key"},
        known | {"key": known["key"] | {"settings": older}},
    ):
        write_parquet(sample, table.replace_schema_metadata({name: json.dumps(earlier).encode()}))
        with pytest.raises(InputError, match=r"earlier version of ray-backfill.*sample again") as error:
            take_sample(data, sample, 0, SampleSettings(), add=2)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", ["source", "columns", "drop"])
def test_an_import_is_that_of_its_sources(data: Path, tmp_path: Path, change: str) -> None:
    path, names, drop = tmp_path / "mine" / "gallery.parquet", ColumnNames(), False

    def run() -> None:
        import_split(path, [str(data / "gallery.parquet")], names, drop, False)

    run()
    seen = times(path)
    run()
    assert times(path) == seen
    if change == "source":
        values("gallery", "new", negate(3))(data)
    elif change == "columns":
        names = ColumnNames(keep=("text", "tenant"))
    else:
        drop = True
    why = r"(changed after the import|columns.keep: \[\] there|drop_broken: False there)"
    with pytest.raises(InputError, match=why):
        run()
    assert times(path) == seen


def test_an_import_says_which_sources_do_not_tell_changes(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Qdrant and Milvus tell how many vectors they have, and no more."""
    silent = replace(open_source(str(data / "gallery.parquet")), name="qdrant:items", tells_changes=False)
    monkeypatch.setattr(importing, "open_source", lambda _: silent)
    for said in (0, 1):
        capsys.readouterr()
        import_split(tmp_path / "gallery.parquet", ["qdrant:items"], ColumnNames(), False, False)
        assert capsys.readouterr().err.count("qdrant:items does not tell whether its vectors have changed") == said


@pytest.mark.parametrize("earlier", [{"format": 7}, {"format": 99}, {}])
def test_results_of_other_versions_are_refused_in_one_line(data: Path, tmp_path: Path, earlier: dict[str, int]) -> None:
    out = evaluate_folder(data, EVALUATION, FitSettings(), Context(tmp_path / "out"))
    manifest = read_json(out / "manifest.json")
    settings = {name: value for name, value in manifest["settings"].items() if name != "format"}
    # What an evaluation was, too, may have had another form.
    write_json(out / "manifest.json", manifest | {"settings": settings | earlier | {"evaluation": {"methods": None}}})
    with pytest.raises(InputError, match=r"version of ray-backfill.*give --overwrite") as error:
        evaluate_folder(data, EVALUATION, FitSettings(), Context(tmp_path / "out"))
    assert "\n" not in str(error.value)
    evaluate_folder(data, EVALUATION, FitSettings(), Context(tmp_path / "out", overwrite=True))
    assert read_json(out / "manifest.json")["settings"] == manifest["settings"]
