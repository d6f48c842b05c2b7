"""sample and forecast as commands: from a folder to tables, a page, and the exact curve at the end."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_backfill.cli.main import main
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.forecast.report import read_forecast
from tests.forecast.galleries import gallery

METHODS = ("rm_naive", "procrustes_query")


def write(folder: Path, new: bool = False) -> None:
    """The small gallery as a folder; the gallery has old embeddings only, unless ``new``."""
    of = gallery(items=1500, queries=80, classes=150)
    labels = np.full(1500, -1)
    for query in range(80):
        labels[of.truth.positives_of(query)] = query
    # Queries of one class have the same right answers; the first one's number stands for all.
    answers = [of.truth.positives_of(query) for query in range(80)]
    first = [int(labels[own[0]]) if len(own) else -1 for own in answers]
    tenants = np.random.default_rng(1).choice(3, 1500, p=[0.72, 0.24, 0.04])  # a class is of one of them
    tenant = np.where(labels >= 0, tenants[labels], tenants)
    columns = {"id": [f"item {i}" for i in range(1500)], "old": vector_column(of.old.gallery), "label": labels,
               "tenant": tenant}  # fmt: skip
    columns |= {"new": vector_column(of.new.gallery)} if new else {}
    write_parquet(folder / "gallery.parquet", pa.table(columns))
    both = {"old": vector_column(of.old.query), "new": vector_column(of.new.query)}
    write_parquet(
        folder / "queries.parquet", pa.table({"id": np.arange(80), "label": first, "tenant": tenants[first]} | both)
    )


def embed(folder: Path, out: Path, everything: bool = False) -> None:
    """What the user does: new embeddings of the items in the list."""
    ids = [f"item {i}" for i in range(1500)]
    if not everything:
        ids = pq.read_table(folder / "sample.parquet")["id"].to_pylist()
    rows = np.array([int(each.split()[1]) for each in ids])
    new = gallery(items=1500, queries=80, classes=150).new.gallery[rows]
    write_parquet(out, pa.table({"id": ids, "new": vector_column(new)}))


def run(*words: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["ray-backfill", *map(str, words)])
        main()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def sampled(folder: Path, tmp_path: Path) -> Path:
    """The new embeddings of a sample of 300 items, which stands in the folder."""
    run("sample", folder, "--budget", 300)
    embed(folder, tmp_path / "new.parquet")
    return tmp_path / "new.parquet"


def forecast(folder: Path, new: Path, out: Path, merge: str = "best") -> Path:
    run("forecast", folder, "--new", new, "--methods", *METHODS, "--points", 5, "--out", out,
        "--metrics", "mAP", "recall@100", "--merge", merge)  # fmt: skip
    return out / "forecast"


@pytest.mark.drawn
def test_from_a_folder_to_a_page(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("sample", folder, "--budget", 300)
    assert "300 items" in capsys.readouterr().out
    embed(folder, tmp_path / "new.parquet")
    results = forecast(folder, tmp_path / "new.parquet", tmp_path / "run")
    shown = capsys.readouterr().out
    assert "Forecast from 300 of 1,500 new embeddings (20.0 %)" in shown
    assert "Procrustes, query" in shown
    page = (results / "report.html").read_text(encoding="utf-8")
    assert "Forecast of an online backfill" in page
    assert "few misses are sampled" in page, "recall@100 is above 0.9"
    assert (results / "curves.png").stat().st_size > 10_000
    found = read_forecast(results)
    assert {row.method for row in found.rows} == set(METHODS)
    assert all(row.auc_low < row.auc < row.auc_high for row in found.rows)
    assert json.loads((results / "manifest.json").read_text())["known"] == 300


def test_a_sample_grows_and_narrows_the_forecast(folder: Path, tmp_path: Path) -> None:
    run("sample", folder, "--budget", 150)
    first = pd.read_parquet(folder / "sample.parquet")
    embed(folder, tmp_path / "new.parquet")
    few = read_forecast(forecast(folder, tmp_path / "new.parquet", tmp_path / "run"))
    run("sample", folder, "--add", 450)
    both = pd.read_parquet(folder / "sample.parquet")
    assert set(first.id) <= set(both.id)
    assert len(both) == 600
    assert set(both[both["round"] == 1].id) == set(first.id)
    embed(folder, tmp_path / "new.parquet")
    more = read_forecast(forecast(folder, tmp_path / "new.parquet", tmp_path / "run"))
    for row, wider in zip(more.rows, few.rows, strict=True):
        if row.metric == "recall@100":  # nearly 1 here: a small sample does not see its variance
            continue
        assert row.auc_high - row.auc_low < wider.auc_high - wider.auc_low


@pytest.mark.parametrize(("merge", "filtered"), [("best", ()), ("csls", ()), ("best", ("--filter", "tenant"))])
def test_with_everything_known_it_is_the_replay(
    folder: Path, tmp_path: Path, merge: str, filtered: tuple[str, ...]
) -> None:
    run("sample", folder, "--budget", 150, *filtered)
    embed(folder, tmp_path / "new.parquet", everything=True)
    found = read_forecast(forecast(folder, tmp_path / "new.parquet", tmp_path / "run", merge))
    # The same maps: fitted on the pilot, which stands in for the train split that the folder lacks.
    write(tmp_path / "whole", new=True)
    pilot = pd.read_parquet(folder / "sample.parquet").query("reason == 'pilot'").id
    table = pq.read_table(tmp_path / "whole" / "gallery.parquet")
    rows = table.filter(pa.compute.is_in(table["id"], pa.array(pilot)))
    place = {name: index for index, name in enumerate(rows["id"].to_pylist())}
    write_parquet(tmp_path / "whole" / "train.parquet", rows.take([place[name] for name in pilot]))
    write_parquet(tmp_path / "whole" / "validation.parquet", rows.slice(0, 2))
    options = ["--methods", *METHODS, "--points", 5, "--metrics", "mAP", "recall@100", "--merges", merge, *filtered]
    run("simulate", "--data", tmp_path / "whole", *options, "--out", tmp_path / "exact")
    exact = pd.read_parquet(tmp_path / "exact" / "results" / "curves.parquet").set_index(["method", "metric", "t"])
    for point in found.points:
        assert point.value == pytest.approx(exact.value[point.method, point.metric, point.t], abs=1e-14)
        assert point.low == pytest.approx(point.high, abs=1e-14)
    summary = pd.read_parquet(tmp_path / "exact" / "results" / "summary.parquet").set_index(["method", "metric"])
    for row in found.rows:
        assert row.gain == pytest.approx(summary.gain[row.method, row.metric], abs=1e-9)
    assert (found.manifest["with_csls"] is not None) == any(row.merge == "csls" for row in found.rows)


def test_small_tenants_are_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of three tenants, one has 4 % of the items, and another has fewer than 30 in the sample of 100."""
    run("sample", folder, "--budget", 100, "--filter", "tenant")
    told = capsys.readouterr().err
    embed(folder, tmp_path / "new.parquet")
    results = forecast(folder, tmp_path / "new.parquet", tmp_path / "run")
    for words in (told, capsys.readouterr().out, (results / "report.html").read_text(encoding="utf-8")):
        assert "2 values of tenant have fewer than 30" in " ".join(words.split())
    known = pd.read_parquet(folder / "sample.parquet")
    tenants = pd.read_parquet(folder / "gallery.parquet").set_index("id").tenant[known.id[known.reason != "close"]]
    assert (tenants.value_counts() < 30).sum() == 2
    with pytest.raises(SystemExit):
        run("forecast", folder, "--new", tmp_path / "new.parquet", "--out", tmp_path / "shards", "--shards", 2)
    assert "leave --shards out" in capsys.readouterr().err


def test_a_merge_must_suit_the_distance_of_the_sample(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("sample", folder, "--budget", 150, "--distance", "l2")
    embed(folder, tmp_path / "new.parquet")
    with pytest.raises(SystemExit) as stopped:
        forecast(folder, tmp_path / "new.parquet", tmp_path / "run", "csls")
    assert stopped.value.code == 2
    assert "error: the csls merge supports only the cosine distance, not l2" in capsys.readouterr().err
    assert not (tmp_path / "run" / "forecast").exists()
    found = read_forecast(forecast(folder, tmp_path / "new.parquet", tmp_path / "run"))
    assert {row.merge for row in found.rows} <= {"raw", "quantile", "zscore", "isotonic"}


def test_new_embeddings_outside_of_the_sample_are_not_read(folder: Path, tmp_path: Path) -> None:
    """The gallery has all new embeddings; those that the sample does not list are replaced by others."""
    write(tmp_path / "full", new=True)
    run("sample", tmp_path / "full", "--budget", 300)
    found = []
    for change in (False, True):
        if change:
            table = pq.read_table(tmp_path / "full" / "gallery.parquet")
            listed = set(pq.read_table(tmp_path / "full" / "sample.parquet")["id"].to_pylist())
            new = np.stack(table["new"].to_pylist()).astype(np.float32)
            new[[name not in listed for name in table["id"].to_pylist()]] = 1.0
            at = table.column_names.index("new")
            write_parquet(tmp_path / "full" / "gallery.parquet", table.set_column(at, "new", vector_column(new)))
        run("forecast", tmp_path / "full", "--methods", *METHODS, "--points", 5, "--out", tmp_path / f"run{change}")
        found.append(pd.read_parquet(tmp_path / f"run{change}" / "forecast" / "summary.parquet"))
    pd.testing.assert_frame_equal(found[0], found[1], check_exact=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sample", "{data}"], "give --budget N"),
        (["sample", "{data}", "--budget", "9000"], "more than all of them"),
        (["sample", "{data}", "--add", "10"], "run: ray-backfill sample"),
        (["sample", "{data}", "--budget", "100", "--truth", "new-top10"], "needs the new embedding of every"),
        (["forecast", "{data}"], "sample.parquet is missing"),
        (["forecast", "--new", "new.parquet"], "name the folder of embeddings first"),
        (["forecast", "{data}", "--metrics", "CMC@1"], "CMC@1 cannot be forecast"),
        (["forecast", "{data}", "--metrics", "mAP@10"], "too few right answers"),
        (["forecast", "{data}", "--merge", "rrf"], "the rrf merge compares ranks, which cannot be forecast"),
        (["forecast", "{data}", "--merge", "cls"], "unknown merge 'cls'"),
        *[(["forecast", "{data}", f"--{name}", "1"], f"unrecognized options: --{name}")
          for name in ("merges", "distance", "truth", "filter", "slices", "permutations", "cutoffs", "device")],
        (["sample", "{data}", "--budget", "100", "--distance", "inner_product"], "inner products cannot be forecast"),
        (["sample", "{data}", "--budget", "100", "--seed", "-1"], "--seed must not be negative"),
        (["sample", "{data}", "--budget", "20"], "use at least 50"),
    ],
)  # fmt: skip
def test_what_cannot_be_done(
    folder: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(data=folder) for word in words]
    with pytest.raises(SystemExit) as stopped:
        run(*given, *(["--out", tmp_path / "run"] if words[0] == "forecast" else []))
    assert stopped.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
    assert not (folder / "sample.parquet").exists()
    assert not (tmp_path / "run" / "forecast").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "lacks 4 of the 300 items"),
        ("unknown", "ids that the gallery lacks"),
        ("other", "different from the earlier run: "),
        ("short", "has vectors of 10 dimensions"),
        ("zero", "row 3: a zero vector"),
    ],
)
def test_embeddings_that_do_not_fit(
    folder: Path, sampled: Path, tmp_path: Path, change: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pq.read_table(sampled)
    if change == "missing":
        write_parquet(sampled, table.slice(4))
    if change == "unknown":
        ids = ["nobody", *table["id"].to_pylist()[1:]]
        write_parquet(sampled, table.set_column(0, "id", pa.array(ids)))
    if change in ("short", "zero"):
        new = np.stack(table["new"].to_pylist()).astype(np.float32)
        new[3] = 0
        write_parquet(
            sampled,
            table.set_column(1, "new", vector_column(new[:, :10] if change == "short" else new)),
        )
    if change == "other":
        gallery_ = pq.read_table(folder / "gallery.parquet")
        write_parquet(folder / "gallery.parquet", gallery_.slice(1))
    with pytest.raises(SystemExit) as stopped:
        forecast(folder, sampled, tmp_path / "run")
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_few_items_may_lack_a_new_embedding(
    folder: Path, sampled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = read_forecast(forecast(folder, sampled, tmp_path / "whole"))
    # All sampled right answers of one query, which then has nothing that its others resemble.
    listed = pd.read_parquet(folder / "sample.parquet")
    of_query = pd.read_parquet(folder / "gallery.parquet", columns=["id", "label"]).merge(listed[["id", "reason"]])
    sizes = of_query[(of_query.label >= 0) & (of_query.reason == "right answer")].groupby("label").id.apply(list)
    lost = next(ids for ids in sizes if len(ids) == 3)
    table = pq.read_table(sampled)
    kept = pa.compute.invert(pa.compute.is_in(table["id"], pa.array(lost)))
    write_parquet(tmp_path / "most.parquet", table.filter(kept))
    capsys.readouterr()
    most = read_forecast(forecast(folder, tmp_path / "most.parquet", tmp_path / "most"))
    assert "lacks 3 of the 300 items of the sample" in capsys.readouterr().err
    assert most.manifest["known"] == 297
    for row, other in zip(most.of("mAP", "random"), whole.of("mAP", "random"), strict=True):
        assert other.auc_low < row.auc < other.auc_high


def test_an_existing_sample_is_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("sample", folder, "--budget", 300)
    before = (folder / "sample.parquet").read_bytes()
    with pytest.raises(SystemExit):
        run("sample", folder, "--budget", 200)
    assert "extend it with --add" in capsys.readouterr().err
    assert (folder / "sample.parquet").read_bytes() == before


@pytest.mark.usefixtures("ray_session")
def test_heads_are_fitted_on_the_pilot(folder: Path, sampled: Path, tmp_path: Path) -> None:
    run("forecast", folder, "--new", sampled, "--methods", "fct", "--transforms.epochs", 2,
        "--points", 3, "--out", tmp_path / "run")  # fmt: skip
    assert {row.method for row in read_forecast(tmp_path / "run" / "forecast").rows} == {"fct"}
    assert pq.read_metadata(tmp_path / "run" / "pilot" / "train.parquet").num_rows == 60


def test_what_the_backfill_has_done_is_a_source_of_its_own(
    folder: Path, sampled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    embed(folder, tmp_path / "all.parquet", everything=True)
    done = pq.read_table(tmp_path / "all.parquet").slice(0, 1400)
    write_parquet(tmp_path / "done.parquet", done)
    few = read_forecast(forecast(folder, sampled, tmp_path / "few"))
    run("forecast", folder, "--new", sampled, tmp_path / "done.parquet", "--methods", *METHODS,
        "--points", 5, "--metrics", "mAP", "--out", tmp_path / "more")  # fmt: skip
    more = read_forecast(tmp_path / "more" / "forecast")
    assert more.manifest["known"] > 1400
    for row, wider in zip(more.of("mAP", "random"), few.of("mAP", "random"), strict=True):
        assert row.auc_high - row.auc_low < wider.auc_high - wider.auc_low
    few_items = pq.read_table(sampled)
    listed = pa.compute.is_in(done["id"], few_items["id"].combine_chunks())
    both = pa.concat_tables([few_items, done.filter(pa.compute.invert(listed))])
    write_parquet(tmp_path / "both.parquet", both)
    with pytest.raises(SystemExit):
        forecast(folder, tmp_path / "both.parquet", tmp_path / "both")
    assert "give the sample as a file of its own" in capsys.readouterr().err


def test_a_forecast_is_of_the_truth_of_its_sample(
    folder: Path, sampled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("forecast", folder, "--new", sampled, "--methods", "old", "--out", tmp_path / "run")
    assert "none of the methods can be forecast" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("sample", folder, "--add", 20, "--seed", 7)
    assert "drawn with other settings" in capsys.readouterr().err
    run("sample", folder, "--budget", 1500, "--distance", "l2", "--out", tmp_path / "l2.parquet")
    embed(folder, tmp_path / "all.parquet", everything=True)
    run("forecast", folder, "--new", tmp_path / "all.parquet", "--sample", tmp_path / "l2.parquet", "--methods",
        "rm_naive", "--out", tmp_path / "l2")  # fmt: skip
    assert read_forecast(tmp_path / "l2" / "forecast").manifest["evaluation"]["distance"] == "l2"


@pytest.mark.parametrize("filtered", [(), ("--filter", "tenant")])
def test_first_results_are_those_of_the_items_drawn_at_random(
    folder: Path, tmp_path: Path, filtered: tuple[str, ...]
) -> None:
    """nDCG@10 by sorting, of the chosen queries among the sampled items that are not there because they are close."""
    run("sample", folder, "--budget", 300, *filtered)
    embed(folder, tmp_path / "new.parquet")
    results = forecast(folder, tmp_path / "new.parquet", tmp_path / "run", "raw")
    of_item, of_query = (
        pq.read_table(folder / f"{name}.parquet")["tenant"].to_numpy() for name in ("gallery", "queries")
    )
    found = json.loads((results / "manifest.json").read_text())["first_results"]
    of, table = gallery(items=1500, queries=80, classes=150), pq.read_table(folder / "sample.parquet")
    chosen = json.loads(table.schema.metadata[b"ray_backfill.sample"])["queries"]
    random = table.to_pandas().query("reason != 'close'").id
    items = np.array([int(each.split()[1]) for each in random])
    discounts, means = 1 / np.log2(np.arange(2, 12)), {}
    for name, system in (("old", of.old), ("new", of.new)):
        q, x = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (system.query, system.gallery[items]))
        values = []
        for query in chosen:
            right, near = np.isin(items, of.truth.positives_of(query)), x @ q[query]
            if filtered:
                near[of_item[items] != of_query[query]] = -2
            if right.any():
                first = right[np.argsort(-near, kind="stable")][:10]
                values.append(discounts @ first / discounts[: right.sum()].sum())
        means[name] = np.mean(values)
    assert (found["items"], found["queries"]) == (len(items), len(values))
    assert [found["old"], found["new"]] == pytest.approx([means["old"], means["new"]], abs=1e-6)
    more, low, high = found["more"]
    assert more == pytest.approx(means["new"] - means["old"], abs=1e-6)
    assert low < more < high
