"""Costs against the paper's figures and sums by hand."""

import numpy as np
import pytest

from ray_backfill.compare.analyses.costs import cost_of
from ray_backfill.compare.fitted import FittedMaps
from ray_backfill.core.stages import write_json
from ray_backfill.learn.methods import find_methods
from ray_backfill.learn.models.apply import Affine, FittedMap, save_network
from ray_backfill.learn.papers.fct import Transform
from ray_backfill.learn.papers.rank_merge import Heads

DIMS = {"old": 128, "new": 128, "bct": 64}
BACKBONES = {
    "old": {"macs": 10, "training_flops": 1000},
    "new": {"macs": 20, "training_flops": 2000},
    "bct": {"macs": 30, "training_flops": 3000},
}


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    path = tmp_path_factory.mktemp("maps")
    made: dict[str, FittedMap] = {
        "rm": Heads(128, 128, learn_new=True),
        "mcl": Heads(128, 128),
        "fct": Transform((128,), 128, hidden=64),
        "ridge_query": Affine(np.eye(128, dtype=np.float32), np.ones(128, np.float32)),
        "ridge_gallery": Affine(np.eye(128, dtype=np.float32), np.ones(128, np.float32)),
    }
    for name, network in made.items():
        save_network(path / name, network)
        write_json(path / name / "manifest.json", {"training_flops": 7})
    methods = find_methods(("old", "new", "offline", "rm_naive", "bct", *made))
    maps = FittedMaps({name: path / name for name in made})
    return {method.name: vars(cost_of(method, DIMS, maps, BACKBONES)) for method in methods}


def test_heads_cost_what_the_paper_says(costs: dict[str, dict[str, object]]) -> None:
    """Rank merge, B.3: 132.8K parameters and multiply-accumulates for psi and rho of 128 dimensions."""
    rm = costs["rm"]
    assert rm["query_parameters"] == 132_864
    assert rm["query_macs"] == 2 * 2 * 128 * 256  # biases and norms are no multiply-accumulates
    assert rm["gallery_macs"] == 2 * 128 * 256  # rho of each new item
    assert costs["mcl"]["query_macs"] == 2 * 128 * 256
    assert costs["mcl"]["gallery_macs"] == 0


def test_who_embeds_a_query(costs: dict[str, dict[str, object]]) -> None:
    models = {name: row["query_models"] for name, row in costs.items()}
    assert models["old"] == "old"
    assert models["new"] == models["rm"] == models["fct"] == models["ridge_query"] == "new"
    assert models["rm_naive"] == "old + new"
    assert models["offline"] == "old then new"
    assert models["bct"] == "bct"
    assert [costs[m]["query_backbone_macs"] for m in ("old", "rm", "rm_naive", "bct")] == [10, 20, 30, 30]


def test_stand_ins_cost_the_gallery_and_queries_nothing(costs: dict[str, dict[str, object]]) -> None:
    branch = 128 * 256 + 256 * 256
    assert costs["fct"]["gallery_macs"] == 2 * branch + 512 * 64 + 64 * 64 + 64 * 128
    assert costs["fct"]["query_macs"] == costs["fct"]["query_parameters"] == 0
    assert costs["ridge_gallery"]["gallery_macs"] == costs["ridge_query"]["query_macs"] == 128 * 128
    assert costs["ridge_gallery"]["query_macs"] == costs["ridge_query"]["gallery_macs"] == 0


def test_training_costs_the_map_and_the_models_beside_the_old_one(costs: dict[str, dict[str, object]]) -> None:
    assert costs["rm"]["training_flops"] == 7
    assert costs["rm_naive"]["training_flops"] == 0
    assert costs["rm"]["trained_models"] == "new"
    assert costs["bct"]["trained_models"] == "bct"
    assert [costs[m]["backbone_training_flops"] for m in ("old", "rm", "bct")] == [0, 2000, 3000]


def test_models_that_nobody_knows_cost_nobody_knows_what() -> None:
    row = cost_of(find_methods(("rm_naive",))[0], DIMS, FittedMaps(), {})
    assert np.isnan(row.query_backbone_macs)
    assert row.query_macs == 0
