"""Cascades and filters in a whole run, from a folder to the page."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ray_backfill as rb
from ray_backfill.compare.analyses.cascades import embedded
from ray_backfill.compare.tables import NEW_EMBEDDINGS
from ray_backfill.core.errors import InputError

N, Q = 240, 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 8))

    def columns(rows: int) -> dict[str, Any]:
        label = np.arange(rows) % 6
        noise = rng.normal(size=(rows, 8))
        tenant = np.where(rng.random(rows) < 0.6, "blue", "green")
        both = {"old": (centres[label] + 2 * noise)[:, :5], "new": centres[label] + noise}
        return {"label": label, "tenant": tenant, "popularity": rng.random(rows)} | both

    train = columns(60)
    del train["tenant"]
    return rb.write_folder(tmp_path / "data", columns(N), columns(Q), train)


def test_a_cascade_of_everything_serves_the_new_ranking_from_the_start(folder: Path, tmp_path: Path) -> None:
    methods = [f"cascade@{N}", "cascade@7", "cascade_map@7", "rm_naive"]
    found = rb.simulate(
        folder, out=tmp_path / "run", methods=methods, orders=["random", "popularity"], merges=["raw", "rrf"]
    )
    rows = [row for row in found.rows if row.metric == "nDCG@10"]
    (new,) = (row for row in rows if row.method == "new" and row.order == "random")
    (all_recalled,) = (row for row in rows if row.method == f"cascade@{N}" and row.order == "random")
    assert all_recalled.start == pytest.approx(new.end, abs=1e-12)
    assert {row.merge for row in rows if row.method.startswith("cascade")} == {"raw"}
    assert found.best() is not None
    assert found.best().method == "rm_naive", "cascades are not recommended"  # type: ignore[union-attr]
    curves = pd.read_parquet(tmp_path / "run" / "results" / "curves.parquet")
    counts = curves[(curves.metric == NEW_EMBEDDINGS) & (curves.method == "cascade@7") & (curves.order == "random")]
    assert counts.value.iloc[0] == 7
    assert counts.value.iloc[-1] == 0
    assert (np.diff(counts.value) <= 0).all()
    # An order can reach the candidates between two reported points: the average is that of all judged moments.
    moments = pd.read_parquet(tmp_path / "run" / "results" / "moments.parquet")
    judged = moments[(moments.metric == NEW_EMBEDDINGS) & (moments.method == "cascade@7") & (moments.order == "random")]
    assert len(judged) >= 101
    row = next(row for row in rows if row.method == "cascade@7" and row.order == "random")
    told = next(each for each in embedded(found) if (each.title, each.order) == (row.title, "random"))
    assert told.average == pytest.approx(np.trapezoid(judged.value, judged.t), abs=1e-12)
    assert told.average != pytest.approx(np.trapezoid(counts.value, counts.t), abs=1e-9)
    page = (tmp_path / "run" / "results" / "report.html").read_text()
    assert "What cascades embed" in page
    assert "cascade of 7, relaxed Procrustes recalls" in page
    again = rb.read_results(tmp_path / "run")
    assert "cascade@7" in again.methods


@pytest.mark.parametrize("name", ["cascade@0", "cascade@", "cascade", "rm_naive@5", "cascade@1x"])
def test_only_a_cascade_takes_a_number(folder: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"unknown method '{name}'"):
        rb.simulate(folder, methods=[name])


def test_a_filter_is_a_run_over_each_part(folder: Path, tmp_path: Path) -> None:
    whole = rb.simulate(folder, out=tmp_path / "run", methods="rm_naive", filter="tenant")
    assert "right answers have another tenant" in " ".join(whole.manifest.data["notes"])
    ends = []
    gallery, queries = (pd.read_parquet(folder / f"{name}.parquet") for name in ("gallery", "queries"))
    for tenant in ("blue", "green"):
        own = [table[table.tenant == tenant].reset_index(drop=True) for table in (gallery, queries)]
        data = rb.write_folder(tmp_path / tenant, own[0], own[1])
        summary = rb.simulate(data, methods="rm_naive").summary
        row = summary[(summary.method == "rm_naive") & (summary.metric == "nDCG@10")].iloc[0]
        ends.append((len(own[1]), row["start"], row["end"]))
    row = whole.summary[(whole.summary.method == "rm_naive") & (whole.summary.metric == "nDCG@10")].iloc[0]
    for place, end in ((1, "start"), (2, "end")):
        assert row[end] == pytest.approx(sum(each[0] * each[place] for each in ends) / Q)
    with pytest.raises(InputError, match="filter"):
        rb.simulate(folder, out=tmp_path / "run", methods="rm_naive")


@pytest.mark.parametrize(("changed", "message"), [("shop", "no column 'shop'"), ("new", "integers or text")])
def test_a_bad_filter_is_told(folder: Path, changed: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rb.simulate(folder, methods="rm_naive", filter=changed)


def test_a_filter_keeps_what_the_new_model_finds_in_its_part(folder: Path) -> None:
    found = rb.simulate(folder, methods="rm_naive", filter="tenant", truth="new-top3", metrics=["recall@3", "mAP"])
    assert {row.metric: row.end for row in found.rows if row.method == "new"} == {"recall@3": 1, "mAP": 1}


def test_shards_do_not_filter(folder: Path) -> None:
    with pytest.raises(InputError, match="leave --shards out"):
        rb.simulate(folder, methods="rm_naive", filter="tenant", shards=1)


def judged_folder(path: Path, items: int = 800, labels: Mapping[str, Any] = MappingProxyType({})) -> Path:
    """Judged queries, 5 items for each, and a new model whose cosines are all near 1: distances do not compare."""
    n = items // 5
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(n, 16))

    def columns(rows: int) -> dict[str, Any]:
        signal = centres[np.arange(rows) % n]
        new = signal + rng.normal(size=(rows, 16))
        return {"old": (signal + rng.normal(size=(rows, 16)))[:, :12], "new": np.c_[new, np.full(rows, 12.0)]}

    gallery, queries = columns(items), columns(n)
    right = [np.flatnonzero(np.arange(items) % n == query) for query in range(n)]
    return rb.write_folder(
        path, gallery | labels.get("gallery", {}), queries | {"positives": right} | labels.get("queries", {})
    )


def test_judged_queries_without_labels_get_a_cascade(tmp_path: Path) -> None:
    assert "cascade@100" in rb.simulate(judged_folder(tmp_path / "data"), points=2).methods


def test_a_cascade_beats_merging_distances_that_do_not_compare(tmp_path: Path) -> None:
    # Too few items to fit a merge on.
    found = rb.simulate(judged_folder(tmp_path / "data", items=245), out=tmp_path / "run", metrics=["nDCG@10"])
    rows = {row.method: row for row in found.rows if row.metric == "nDCG@10"}
    assert rows["rm_naive"].auc < rows["old"].auc < rows["cascade@100"].auc
    told = next(each for each in embedded(found) if each.title == rows["cascade@100"].title)
    lead, step = (100 * (rows[name].auc - rows["old"].auc) for name in ("cascade@100", "new"))
    begins = "Switch when the new index is complete: no method but cascades serves better than the old service while"
    assert found.verdict.startswith(begins)
    assert found.verdict.endswith(
        f"Cascade of 100, old recalls has {100 * rows['cascade@100'].auc:.1f} %, {lead:.1f} points more than the old "
        f"service; the upgrade is worth {step:.1f} points. Its price: the new model embeds 100 items for every query "
        f"at the start; on average over the backfill {told.average:.1f}."
    )
    assert begins in (tmp_path / "run" / "results" / "report.html").read_text(encoding="utf-8")


def test_a_cascade_leads_only_if_asked_for(tmp_path: Path) -> None:
    data = judged_folder(tmp_path / "data")
    plain, asked = (rb.simulate(data, metrics=["nDCG@10"], embed_per_query=given) for given in (False, True))
    assert plain.best() is not None
    assert plain.best().method != "cascade@100"  # type: ignore[union-attr]
    assert asked.best().method == "cascade@100"  # type: ignore[union-attr]
    assert asked.verdict.startswith("Re-rank with the new model (cascade of 100, old recalls): users get ")
    assert "The new model embeds 100 items for every query at the start" in asked.verdict


def test_labels_and_named_methods_bring_no_cascade(tmp_path: Path) -> None:
    label = {"gallery": {"label": np.arange(800) % 160}, "queries": {"label": np.arange(160)}}
    labelled = rb.simulate(judged_folder(tmp_path / "labelled", labels=label))
    named = rb.simulate(judged_folder(tmp_path / "judged"), methods=["rm_naive"])
    assert [name for found in (labelled, named) for name in found.methods if name.startswith("cascade")] == []
