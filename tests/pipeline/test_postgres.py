"""The statements of docs/pipeline.md on a half-backfilled PostgreSQL: its answers are those of the replay."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ray_backfill as rb
from ray_backfill.data.folder import read_folder
from ray_backfill.engine.lists import measure_lists
from ray_backfill.engine.merges import RAW, Merge, fit_merge
from ray_backfill.engine.replay import Served
from ray_backfill.engine.systems import GroundTruth, RetrievalSystem, UpgradePair
from ray_backfill.pipeline.lexical import read_lists
from ray_backfill.pipeline.lists import Fusion, Stages
from ray_backfill.pipeline.replay import first_results, replay_service
from ray_backfill.pipeline.service import Service
from tests.data.sources.stores import Items, items, postgres
from tests.test_structure import ROOT

pytestmark = pytest.mark.full

RETRIEVE = CUT = 10
POINTS = 5
PAGE = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
SCORE, BY_SCORE = (
    re.search(rf"^-- {name}\n(.*?)^```", (ROOT / "docs/serving-two-models.md").read_text(), re.DOTALL | re.MULTILINE)[1]  # type: ignore[index]
    for name in ("score", "order")
)
# A cosine of d = 24 products in float32 is off by up to d 2^-23: its sum of products by half of that, its norms by a
# quarter each. So two cosines are told apart beyond twice that; doubled again for unit vectors and 1 - x, which round.
BOUND = 4 * 24 * 2.0**-23


def sorted_by_id(of: Items) -> Items:
    """As the store breaks ties."""
    row = np.argsort(of.id)
    return Items(of.id[row], of.old[row], of.new[row], of.label[row])


OF, ASKED = sorted_by_id(items(200)), sorted_by_id(items(40, seed=1))
ORDER = np.random.default_rng(2).permutation(len(OF.id))
WORDS = np.array(["wing", "shock", "flow", "heat", "plate", "jet", "wave", "cone", "layer", "drag", "lift", "tube"])


def texts(of: Items, words: int, seed: int) -> list[str]:
    """The word of the item's class, and others at random, of which some repeat."""
    rng = np.random.default_rng(seed)
    of_class = [int(name.rpartition(" ")[2]) for name in of.label]
    return [" ".join([WORDS[own], *rng.choice(WORDS, rng.integers(0, words))]) for own in of_class]


TEXTS, QUESTIONS = texts(OF, 12, 3), texts(ASKED, 2, 4)


def block(name: str) -> str:
    """The statement of the page whose first line names it."""
    found = re.search(rf"^-- {name}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One table with both vectors and the text, not backfilled; the new vectors in ``waiting``."""
    psycopg = pytest.importorskip("psycopg")
    with postgres(tmp_path_factory.mktemp("server")) as address, psycopg.connect(address, autocommit=True) as opened:
        opened.execute("CREATE EXTENSION IF NOT EXISTS vector")
        opened.execute(
            "CREATE TABLE items (id bigint PRIMARY KEY, text text, embedding vector(16), forward vector(24))"
        )
        opened.execute("CREATE TABLE waiting (id bigint PRIMARY KEY, forward vector(24))")
        with opened.cursor().copy("COPY items (id, text, embedding) FROM STDIN") as copy:
            for row in zip(OF.id.tolist(), TEXTS, OF.old.tolist(), strict=True):
                copy.write_row((*row[:2], str(row[2])))
        with opened.cursor().copy("COPY waiting FROM STDIN") as copy:
            for item, vector in zip(OF.id.tolist(), OF.new.tolist(), strict=True):
                copy.write_row((item, str(vector)))
        opened.execute(SCORE)
        yield opened


def backfill(connection: Any, count: int) -> None:
    done = OF.id[ORDER[:count]].tolist()
    connection.execute(
        "UPDATE items SET forward = (SELECT forward FROM waiting WHERE id = items.id AND id = ANY(%s))", [done]
    )


def lists_of_store(connection: Any) -> pd.DataFrame:
    """PostgreSQL's ranking of the texts for each query."""
    rows = [
        (query, item, score)
        for query, question in enumerate(QUESTIONS)
        for item, score in connection.execute(block("list"), {"text": question})
    ]
    return pd.DataFrame(rows, columns=["query", "item", "score"]).astype({"query": str, "item": str})


def clear(merge: Merge, done: np.ndarray) -> np.ndarray:
    """(Q,) whether no two neighbours among the first of a partition, or of both together, are closer than the bound."""
    apart, sides = [], []
    for (asked, of), is_there, score_map in (
        ((ASKED.old, OF.old), ~done, merge.backward),
        ((ASKED.new, OF.new), done, merge.forward),
    ):
        unit_Q, unit_N = (v.astype(np.float64) / np.linalg.norm(v, axis=1, keepdims=True) for v in (asked, of))
        nearest = np.sort(1 - unit_Q @ unit_N[is_there].T, axis=1)[:, : RETRIEVE + 1]
        apart.append(np.diff(nearest, axis=1) > BOUND)
        scores, slope = nearest, 1.0
        if score_map is not None:
            scores = score_map(nearest.ravel()).reshape(nearest.shape)
            slope = np.max(np.diff(score_map.scores) / np.diff(score_map.distances))
        sides.append((scores, slope))
    both = np.sort(np.hstack([scores for scores, _ in sides]), axis=1)[:, : CUT + 1]
    apart.append(np.diff(both, axis=1) > BOUND * max(1.0, *(slope for _, slope in sides)))
    return np.asarray(np.all(np.hstack(apart), axis=1))


@pytest.mark.parametrize("variant", ["merged", "merged by score", "separate"])
def test_answers_are_those_of_the_replay(variant: str, connection: Any, tmp_path: Path) -> None:
    pair = UpgradePair(RetrievalSystem(ASKED.old, OF.old), RetrievalSystem(ASKED.new, OF.new))
    train = UpgradePair(RetrievalSystem(OF.old, OF.old), RetrievalSystem(OF.new, OF.new))
    merge = fit_merge("zscore", train, None, "cosine", 0) if variant == "merged by score" else RAW
    statement, asked = block("merged"), dict[str, Any]()
    if variant == "separate":
        statement = re.sub(r"^vectors AS .*?^\),\n", block("three lists"), statement, flags=re.DOTALL | re.MULTILINE)
    elif merge.backward and merge.forward:
        statement = statement.replace("ORDER BY distance, id)", BY_SCORE.strip() + ")")
        for name, side in (("backward", merge.backward), ("forward", merge.forward)):
            asked |= {f"{name}_x": side.distances.tolist(), f"{name}_y": side.scores.tolist()}

    gallery: dict[str, Any] = {"id": OF.id, "old": OF.old, "new": OF.new}
    queries: dict[str, Any] = {"id": np.arange(len(ASKED.id)), "old": ASKED.old, "new": ASKED.new}
    rb.write_folder(tmp_path / "data", gallery, queries)
    truth = GroundTruth.from_labels(ASKED.label, OF.label)
    lists_of_store(connection).to_csv(tmp_path / "lists.csv", index=False)
    lists = read_lists(tmp_path / "lists.csv", read_folder(tmp_path / "data"), RETRIEVE, truth, by_rank=True)
    assert (np.diff(lists.score[lists.item[:, 1] >= 0, :2], axis=1) == 0).any(), "some first places tie"
    fusion = Fusion("rrf", 60, (1, 1), variant == "separate", RETRIEVE, CUT)
    service = Service(Stages(RETRIEVE, CUT, fusion), lists)
    systems, rows = [pair.backward, pair.forward], np.arange(truth.n_queries)
    served = Served(0, 1, {"": ORDER}, merge=merge)
    expected = first_results(systems, served, truth, rows, POINTS, "cosine", service, CUT)[""].item
    ((curves,),) = replay_service(systems, [served], truth, POINTS, ["nDCG@10"], "cosine", service)

    compared = 0
    for point in range(POINTS):
        count = point * len(ORDER) // (POINTS - 1)
        backfill(connection, count)
        answers = np.full((len(rows), CUT), -1)
        for query in rows:
            given = {
                "backward": str(ASKED.old[query].tolist()), "forward": str(ASKED.new[query].tolist()),
                "text": QUESTIONS[query], "retrieve": RETRIEVE, "cut": CUT, **asked,
            }  # fmt: skip
            ids = [row[0] for row in connection.execute(statement, given)]
            answers[query, : len(ids)] = np.searchsorted(OF.id, ids)
        is_clear = clear(merge, np.isin(np.arange(len(OF.id)), ORDER[:count]))
        compared += int(is_clear.sum())
        np.testing.assert_array_equal(answers[is_clear], expected[is_clear, point])
        values, _ = measure_lists(answers, truth, rows, ["nDCG@10"])
        np.testing.assert_allclose(values[is_clear, 0, 0], curves[""].per_query["nDCG@10"][is_clear, point], atol=1e-12)
    assert compared > 0.8 * POINTS * len(rows)
