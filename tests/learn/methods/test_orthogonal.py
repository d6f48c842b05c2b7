"""The joint loss against plain loops over equations 2 and 6 to 10, gradients, the rotation, two workers against one."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ray_backfill.learn.methods import Embeddings, all_methods
from ray_backfill.learn.papers.orthogonal import JointBatch, JointMaps, contrast, deviation, joint
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import FitSettings, OrthogonalSettings, TransformTraining
from tests.learn.fits import fitted
from tests.learn.training._workers import on_two_workers

SETTINGS = OrthogonalSettings(forward=0.7, backward=1.3, contrastive=0.4, tau=0.5, threshold=0.2, steepness=3.0)


def batch(old_dim: int = 3, new_dim: int = 5, strict: bool = False) -> JointBatch:
    """12 items of 4 classes, of which items 4 to 9 are this worker's."""
    generator = torch.Generator().manual_seed(0)
    forward, backward = (torch.randn(12, new_dim, generator=generator).double() for _ in range(2))
    old = torch.randn(12, old_dim, generator=generator).double()
    weight = torch.eye(new_dim).double() + 0.2 * torch.randn(new_dim, new_dim, generator=generator).double()
    label, own = torch.tensor([0, 1, 2, 0, 1, 2, 0, 3, 1, 1, 0, 2]), slice(4, 10)
    return JointBatch(
        forward[own], backward[own], old[own], label[own], backward, old, label, None if strict else weight
    )


def looped_contrast(
    anchors: list[list[float]], candidates: list[list[float]], own: list[int], all_: list[int]
) -> float:
    """Equation 8 with a uniform p over the candidates of the anchor's class, the mean over anchors."""
    total = 0.0
    for i, anchor in enumerate(anchors):
        width = min(len(anchor), len(candidates[0]))
        a = anchor[:width]
        z = []
        for candidate in candidates:
            c = candidate[:width]
            z.append(sum(x * y for x, y in zip(a, c, strict=True)) / math.hypot(*a) / math.hypot(*c) / SETTINGS.tau)
        log_q = [x - math.log(sum(math.exp(y) for y in z)) for x in z]
        same = [j for j in range(len(candidates)) if all_[j] == own[i]]
        total -= sum(log_q[j] / len(same) for j in same)
    return total / len(anchors)


def looped(b: JointBatch) -> float:
    """Equation 10."""
    forward, backward, old = b.forward_bn.tolist(), b.backward_bn.tolist(), b.old_bd.tolist()
    n, width = len(forward[0]), min(len(forward[0]), len(old[0]))
    aligned = sum(sum((f - g) ** 2 for f, g in zip(a, c, strict=True)) for a, c in zip(forward, backward, strict=True))
    back = sum(sum((c[k] - o[k]) ** 2 for k in range(width)) for c, o in zip(backward, old, strict=True))
    contrasts = sum(
        looped_contrast(forward, candidates.tolist(), b.label_b.tolist(), b.label_B.tolist())
        for candidates in (b.backward_Bn, b.old_Bd)
    )
    total = (SETTINGS.forward * aligned + SETTINGS.backward * back) / len(forward) + SETTINGS.contrastive * contrasts
    if b.weight_nn is None:
        return total
    w, squares = b.weight_nn.tolist(), 0.0
    for i in range(n):
        for j in range(n):
            squares += (sum(w[i][k] * w[j][k] for k in range(n)) - (i == j)) ** 2
    x = math.sqrt(squares)
    return total + x / (1 + math.exp(-SETTINGS.steepness * (x - SETTINGS.threshold * math.sqrt(n))))


@pytest.mark.parametrize(("old_dim", "new_dim"), [(3, 5), (5, 5), (6, 4)])
@pytest.mark.parametrize("strict", [True, False])
def test_the_loss_equals_plain_loops(old_dim: int, new_dim: int, strict: bool) -> None:
    b = batch(old_dim, new_dim, strict)
    assert joint(b, SETTINGS).item() == pytest.approx(looped(b), rel=1e-9)


def test_gradients_flow_into_both_maps_and_the_weight() -> None:
    b = batch()
    assert b.weight_nn is not None

    def of(forward: torch.Tensor, backward: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        everyone = torch.cat([b.backward_Bn[:4], backward, b.backward_Bn[10:]])
        changed = replace(b, forward_bn=forward, backward_bn=backward, backward_Bn=everyone, weight_nn=weight)
        return joint(changed, SETTINGS)

    inputs = tuple(v.clone().requires_grad_() for v in (b.forward_bn, b.backward_bn, b.weight_nn))
    assert torch.autograd.gradcheck(of, inputs, atol=1e-6)
    for gradient in torch.autograd.grad(of(*inputs), inputs):
        assert gradient.abs().sum() > 0


def test_small_deviations_cost_nothing_and_large_ones_their_size() -> None:
    """The threshold is in units of sqrt(n): 0.5 * 2 for 4 dimensions."""
    for size, factor in ((0.2, 0.0), (1.0, 0.5), (3.0, 1.0)):
        weight = torch.eye(4).double()
        weight[0, 0] = math.sqrt(1 + size)
        assert deviation(weight, 0.5, 100.0).item() == pytest.approx(factor * size, abs=1e-6)


def test_without_labels_each_item_is_contrasted_with_the_others() -> None:
    b = batch()
    same = torch.arange(4, 10)[:, None] == torch.arange(12)[None, :]
    cosine = torch.nn.functional.cosine_similarity(b.forward_bn[:, None], b.backward_Bn[None], dim=2) / 0.5
    expected = torch.nn.functional.cross_entropy(cosine, torch.arange(4, 10))
    torch.testing.assert_close(contrast(b.forward_bn, b.backward_Bn, same, 0.5), expected)


def train_set(labels: bool = True) -> TrainSet:
    rng = np.random.default_rng(0)
    new = rng.normal(size=(120, 6)).astype(np.float32)
    old = (new @ np.linalg.qr(rng.normal(size=(6, 6)))[0][:, :4] + 0.1 * rng.normal(size=(120, 4))).astype(np.float32)
    return TrainSet({"old": old, "new": new}, np.arange(120) % 8 if labels else None)


def trained(name: str, data: TrainSet, epochs: int = 30, **orthogonal: float) -> JointMaps:
    training = TransformTraining(epochs=epochs, batch=40, lr=5e-3, orthogonal=OrthogonalSettings(**orthogonal))
    network: JointMaps = fitted(name, data, FitSettings(transforms=training))
    return network


@pytest.mark.parametrize("labels", [True, False])
def test_a_strict_b_is_a_rotation_that_aligns(labels: bool) -> None:
    data = train_set(labels)
    network = trained("orthogonal", data, 150, contrastive=0.0)
    weight = network.to_old.linear.weight.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(6), atol=1e-5, rtol=0)
    assert torch.linalg.det(weight) == pytest.approx(1, abs=1e-4), "the exponential of a skew-symmetric matrix"
    assert not network.to_old.linear.bias.any()
    old, new = (torch.from_numpy(data.vectors[m]) for m in ("old", "new"))
    with torch.no_grad():
        forward, backward = network(old, new)
    assert torch.nn.functional.cosine_similarity(backward[:, :4], old).mean() > 0.9
    assert torch.nn.functional.cosine_similarity(forward, backward).mean() > 0.8


def test_the_threshold_bounds_the_deviation() -> None:
    deviations = []
    for threshold in (0.05, 0.2):
        network = trained("lambda_orthogonal", train_set(), 150, threshold=threshold, steepness=50)
        weight = network.to_old.linear.weight.detach()
        deviations.append(float((weight @ weight.T - torch.eye(6)).norm()))
        assert deviations[-1] < 1.3 * threshold * math.sqrt(6)
    assert deviations[0] < deviations[1]


def test_labels_matter_to_the_contrast() -> None:
    with_labels, without = (trained("lambda_orthogonal", train_set(labels)) for labels in (True, False))
    assert not torch.allclose(with_labels.to_new.linear.weight, without.to_new.linear.weight, atol=1e-3)


@pytest.mark.parametrize(("contrastive", "moves"), [(1.0, True), (0.0, False)])
def test_b_also_learns_as_what_f_is_contrasted_with(contrastive: float, moves: bool) -> None:
    """No other term reaches B here."""
    network = trained("lambda_orthogonal", train_set(), 3, forward=0, backward=0, contrastive=contrastive, threshold=9)
    torch.manual_seed(TransformTraining().seed)
    start = JointMaps(**network.shape).to_old.linear.weight
    assert torch.allclose(network.to_old.linear.weight, start, atol=1e-3) != moves


@pytest.mark.parametrize("old_dim", [4, 6, 8])
def test_the_pairs_serve_what_the_paper_says(old_dim: int) -> None:
    rng = np.random.default_rng(0)
    query, gallery = (
        {m: rng.normal(size=(n, d)).astype(np.float32) for m, d in (("old", old_dim), ("new", 6))} for n in (3, 9)
    )
    network = JointMaps(old_dim, 6, strict=False).eval()
    e = Embeddings(query, gallery)
    with torch.no_grad():
        mapped = {n: network.to_old(torch.from_numpy(s["new"])).numpy() for n, s in (("q", query), ("g", gallery))}
        stand_in = network.to_new(torch.from_numpy(gallery["old"])).numpy()
    pair, as_it_is = (all_methods()[name].pair(e, network) for name in ("orthogonal", "lambda_orthogonal_query"))
    np.testing.assert_allclose(pair.backward.query, mapped["q"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(pair.backward.gallery, stand_in, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(pair.forward.gallery, mapped["g"], rtol=1e-4, atol=1e-5)
    assert as_it_is.backward.gallery is gallery["old"]
    expected = np.pad(mapped["q"], ((0, 0), (0, 2)))[:, :old_dim]
    np.testing.assert_allclose(as_it_is.backward.query, expected, rtol=1e-4, atol=1e-5)


def learned(rank: int = 0) -> list[dict[str, torch.Tensor]]:
    networks = [trained(name, train_set(), 3, threshold=0.1) for name in ("lambda_orthogonal", "orthogonal")]
    return [{key: value.clone() for key, value in network.state_dict().items()} for network in networks]


@pytest.mark.full
def test_two_workers_learn_what_one_learns(tmp_path: Path) -> None:
    for found, expected in zip(on_two_workers(learned, tmp_path)[0], learned(), strict=True):
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-6)
