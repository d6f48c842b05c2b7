"""What docs/comparison.md says that NumPy finds on the README's vectors: in its own way, and in the replay's."""

from pathlib import Path

import numpy as np
import pytest

import ray_backfill as rb
from docs.comparison import Vectors, backfilled, ranked, write_vectors
from tests.test_readme import code_of, run
from tests.test_structure import ROOT

PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")


def test_numpy_and_the_replay_find_what_the_page_says(tmp_path: Path) -> None:
    run(["-c", code_of(ROOT / "README.md")], tmp_path)
    write_vectors(str(tmp_path / "my_embeddings"), str(tmp_path / "vectors"))
    v = Vectors(str(tmp_path / "vectors"))
    old, new = v.scores("old"), v.scores("new")
    assert f"invented: old {v.ndcg(ranked(old)):.1f}, new {v.ndcg(ranked(new)):.1f}" in PAGE
    kept, top = np.full_like(new, -np.inf), ranked(old)[:, :100]
    np.put_along_axis(kept, top, np.take_along_axis(new, top, 1), 1)
    assert f"re-ranks 100: {v.ndcg(ranked(kept)):.1f}" in PAGE
    found = rb.simulate(
        tmp_path / "my_embeddings", out=tmp_path / "run", methods=["rm_naive", "cascade@100"], merges=["raw"],
        metrics=["nDCG@10"],
    )  # fmt: skip
    curves = found.frame.query("metric == 'nDCG@10'").set_index(["method", "t"])["value"]
    assert 100 * curves["cascade@100", 0.0] == pytest.approx(v.ndcg(ranked(kept)), abs=0.01)
    for t in (0.1, 0.5, 0.9):
        merged = np.where(backfilled(old.shape[1], t), new, old)
        assert 100 * curves["rm_naive", t] == pytest.approx(v.ndcg(ranked(merged)), abs=0.01)
