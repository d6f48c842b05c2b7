"""What a drill refuses of a service."""

from pathlib import Path

import pytest

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.core.errors import InputError
from ray_backfill.drill.run import check_drill
from ray_backfill.drill.settings import ChurnSettings, LiveSettings


@pytest.mark.parametrize(
    ("service", "churn", "named"),
    [
        ("retrieve: 20", ChurnSettings(deletes=1), "live.churn.deletes"),
        ("rerank: {top: 5, model: 'python:tests.pipeline._rerankers:score'}", ChurnSettings(), "rerank.scores"),
    ],
)
def test_what_cannot_be_live_is_refused(service: str, churn: ChurnSettings, named: str, tmp_path: Path) -> None:
    (tmp_path / "service.yaml").write_text(service)
    evaluation = Evaluation(metrics=("nDCG@10",), orders=("random",), service=tmp_path / "service.yaml")
    with pytest.raises(InputError, match=named) as refused:
        check_drill(evaluation, LiveSettings(method="rm_naive", churn=churn))
    assert "\n" not in str(refused.value)
    check_drill(evaluation, LiveSettings(method="rm_naive"), has_new=True)
