"""Every published protocol from images to metrics; the comments derive the expected values by hand.

An image has one colour: the old model reads its red level, the new model its green level. Hence embeddings are points
on a line, a distance is a difference of levels, and every ranking is known.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ray_backfill.compare.analyses.slices import GAP, slice_tables
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.replay import judge
from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.query_groups import Slice
from ray_backfill.data.truth import ground_truth
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.engine.replay import Curve, replay
from ray_backfill.engine.systems import GroundTruth, RetrievalSystem, UpgradePair
from ray_backfill.images.class_split import Protocol, split_classes
from ray_backfill.images.datasets import image_folder, open_images
from ray_backfill.images.source import ImageSource
from tests.images.datasets._pictures import noisy_jpeg, write_tree
from tests.images.datasets._published_more import (
    INDEX,
    QUERIES,
    ROWS,
    TRAIN,
    Levels,
    flat,
    gldv2_tables,
    hexadecimal,
    landmarks_v2,
    market,
    place,
    small_gldv2,
    vggface,
)


def embed(source: ImageSource, path: Path) -> EmbeddingFolder:
    """Write every split with the columns that embedding actors write, without broken images."""
    for split in source.splits:
        items = source.items(split)
        pixels = source.read(split, np.arange(len(items)))
        kept = np.setdiff1d(np.arange(len(items)), list(pixels.broken))
        # JPEG changes levels by one or two, so all levels here are multiples of 5.
        levels = 5 * np.round(pixels.pixels_BSSC[kept, 4, 4] / 5).astype(np.float32)
        columns: dict[str, Any] = {"id": items.ids_N[kept], "label": items.labels_N[kept]}
        columns |= {"old": vector_column(levels[:, :1]), "new": vector_column(levels[:, 1:2])}
        columns |= {"name": pa.array(source.names(split, kept), pa.string())}
        for name, values in (("group", items.groups_N), ("camera", items.cameras_N)):
            if values is not None:
                columns[name] = values[kept]
        if items.positives_N is not None:
            columns["positives"] = items.positives_N.take(pa.array(kept))
        write_parquet(path / f"{split}.parquet", pa.table(columns))
    return read_folder(path)


def pair_of(folder: EmbeddingFolder) -> UpgradePair:
    queries = folder.queries or folder.gallery
    return UpgradePair(
        RetrievalSystem(queries.old, folder.gallery.old), RetrievalSystem(queries.new, folder.gallery.new)
    )


def curve_of(folder: EmbeddingFolder, order: list[int], points: int, *metrics: str) -> tuple[GroundTruth, Curve]:
    truth = ground_truth(folder, refuse_unknown_ids=False)
    return truth, replay(pair_of(folder), truth, np.array(order), points, metrics, "l2")


def test_market_1501(tmp_path: Path) -> None:
    images: dict[str, Levels | int] = {
        "bounding_box_train/0002_c1s1_000001_00.jpg": 10,
        "query/0007_c1s1_000001_00.jpg": 0,
        "query/0009_c1s1_000001_00.jpg": 0,
        "bounding_box_test/-1_c3s1_000001_00.jpg": 10,  # junk: not in the gallery
        "bounding_box_test/0000_c2s1_000001_00.jpg": 20,  # D, a distractor
        "bounding_box_test/0007_c1s1_000002_00.jpg": 10,  # from the query's own camera: ignored
        "bounding_box_test/0007_c1s1_000003_00.jpg": 60,  # likewise
        "bounding_box_test/0007_c2s1_000001_00.jpg": (30, 10),  # P, a positive
        "bounding_box_test/0007_c3s1_000001_00.jpg": (50, 30),  # R, a positive
        "bounding_box_test/0009_c1s1_000001_00.jpg": 40,  # O, another person
    }
    folder = embed(open_images(market(tmp_path / "m", images)), tmp_path / "e")
    assert folder.gallery.label is not None
    assert folder.gallery.label.tolist() == [0, 7, 7, 7, 7, 9]
    truth, curve = curve_of(folder, [3, 1, 0, 4, 2, 5], 3, "mAP", "CMC@1")
    # All gallery images of 0009 are from the query's own camera: the query is skipped, and counted as such.
    assert (truth.n_queries, truth.skipped.tolist()) == (2, [1])
    # t = 0: D 20, P 30, O 40, R 50: the positives have ranks 2 and 4, AP = (1/2 + 2/4) / 2.
    # t = 1/2, P and D are new: P 10, D 20, O 40, R 50: AP = (1 + 2/4) / 2.
    # t = 1: P 10, D 20, R 30, O 40: AP = (1 + 2/3) / 2.
    np.testing.assert_allclose(curve.values("mAP"), [1 / 2, 3 / 4, 5 / 6], rtol=1e-12)
    assert curve.values("CMC@1").tolist() == [0, 1, 1]


def gldv2_of_105(root: Path) -> ImageSource:
    """Row 0 has level 20, rows 1 to 103 level 40, row 104 level 80 for the old model and 10 for the new model."""
    index = {hexadecimal(300 + i): 5 for i in range(105)}
    rows = list(index)
    queries = {
        hexadecimal(1): (rows[1:104], "Private"),
        hexadecimal(2): ([rows[104], rows[0]], "Public"),
        hexadecimal(3): ([], "Private"),
        hexadecimal(4): ([], "Ignored"),
    }
    gldv2_tables(root, {1: [hexadecimal(9)]}, index, queries)
    levels: dict[str, Levels | int] = {f"index/{row}": 40 for row in rows}
    levels |= {f"index/{rows[0]}": 20, f"index/{rows[104]}": (80, 10), f"train/{hexadecimal(9)}": 0}
    return open_images(landmarks_v2(root, levels | {f"test/{query}": 0 for query in queries}))


def test_google_landmarks_v2(tmp_path: Path) -> None:
    folder = embed(gldv2_of_105(tmp_path / "g"), tmp_path / "e")
    truth, curve = curve_of(folder, list(range(105)), 2, "mAP@100", "mAP@3", "mAP")
    # The ignored image is not a query; the query without positives is skipped, and counted as such.
    assert (truth.n_queries, truth.skipped.tolist()) == (3, [2])
    harmonic = 5.187377517639621  # 1 + 1/2 + ... + 1/100
    # First query, 103 positives. t = 0: ranks 2 to 104, so 99 within 100. P(r) = (r - 1) / r, and
    # AP@100 = (1 / min(103, 100)) (1/2 + 2/3 + ... + 99/100) = (99 - (H - 1)) / 100 = (100 - H) / 100.
    # t = 1: ranks 3 to 105: P(r) = (r - 2) / r, AP@100 = (98 - 2 (H - 1 - 1/2)) / 100 = (101 - 2 H) / 100.
    # Second query, 2 positives. t = 0: ranks 1 and 105: AP@100 = (1 / min(2, 100)) * 1. t = 1: ranks 1 and 2.
    np.testing.assert_allclose(
        curve.per_query["mAP@100"],
        [[(100 - harmonic) / 100, (101 - 2 * harmonic) / 100], [1 / 2, 1]],
        rtol=1e-12,
    )
    # AP@3, first query: (1 / min(103, 3)) (1/2 + 2/3) = 7/18; then (1/3) (1/3).
    np.testing.assert_allclose(curve.per_query["mAP@3"], [[7 / 18, 1 / 9], [1 / 2, 1]], rtol=1e-12)
    # In the whole ranking, rank 105 also counts: (1 + 2/105) / 2.
    np.testing.assert_allclose(curve.per_query["mAP"][1], [107 / 210, 1], rtol=1e-12)
    np.testing.assert_allclose(
        curve.values("mAP@100"), [(150 - harmonic) / 200, (201 - 2 * harmonic) / 200], rtol=1e-12
    )


def test_missing_gallery_images_are_not_positives(tmp_path: Path) -> None:
    settings = small_gldv2(tmp_path / "g")
    (tmp_path / "g" / place("index", ROWS[3])).unlink()
    (tmp_path / "g" / place("index", ROWS[1])).write_bytes(noisy_jpeg()[:700])
    (tmp_path / "g" / place("train", TRAIN[12][0])).unlink()
    folder = embed(open_images(settings), tmp_path / "e")
    assert folder.gallery.id.tolist() == [0, 2, 4]
    assert folder.train is not None
    assert folder.train.label is not None
    assert 12 not in folder.train.label
    truth = ground_truth(folder, refuse_unknown_ids=False)
    # Positives by row: 0 1 | 4 2 | 3 | 1 0 4; rows 1 and 3 are missing, rows 0, 2, 4 have the positions 0, 1, 2.
    assert [truth.positives_of(q).tolist() for q in range(4)] == [[0], [1, 2], [], [0, 2]]
    assert truth.skipped.tolist() == [2]
    with pytest.raises(InputError, match="the gallery has no id 1"):
        ground_truth(folder)


def test_a_validation_split_is_queries_and_gallery(tmp_path: Path) -> None:
    """ImageNet, CIFAR-100, Places: each image of the validation split is excluded from its own result."""
    levels = {"a/1": 10, "a/2": 40, "b/1": 20, "b/2": 90, "c/1": 200}
    files = {f"val/{name}.jpg": flat(level, level // 2 if name == "b/2" else level) for name, level in levels.items()}
    write_tree(tmp_path / "i", files | {"train/a/1.jpg": flat(1)})
    folder = embed(open_images(image_folder.Settings(str(tmp_path / "i"), image_size=8)), tmp_path / "e")
    truth, curve = curve_of(folder, [0, 1, 2, 3, 4], 2, "mAP", "CMC@1")
    assert (truth.n_queries, truth.skipped.tolist()) == (5, [4])  # c has no other image
    # Old model, distances to a1, a2, b1, b2, c1 (10, 40, 20, 90, 200) without the query itself, rank of the positive:
    # a1: a2 30, b1 10, b2 80, c1 190: second, AP 1/2.     a2: a1 30, b1 20, b2 50, c1 160: second, AP 1/2.
    # b1: a1 10, a2 20, b2 70, c1 180: third, AP 1/3.      b2: a1 80, a2 50, b1 70, c1 110: second, AP 1/2.
    # New model, b2 at 45:
    # a1: a2 30, b1 10, b2 35: second, AP 1/2.             a2: a1 30, b1 20, b2 5: third, AP 1/3.
    # b1: a1 10, a2 20, b2 25: third, AP 1/3.              b2: a1 35, a2 5, b1 25: second, AP 1/2.
    np.testing.assert_allclose(curve.values("mAP"), [11 / 24, 5 / 12], rtol=1e-12)
    assert curve.values("CMC@1").tolist() == [0, 0]


@pytest.mark.parametrize(("order", "gap"), [([0, 1, 2, 3], [0.5, 0, 0]), ([2, 3, 0, 1], [0.5, 0.5, 0])])
def test_vggface2_gap_between_genders(tmp_path: Path, order: list[int], gap: list[float]) -> None:
    people = {"n000001": "f", "n000002": "m", "n000009": "m"}
    images: dict[str, Levels | int] = {
        "train/n000002/0001_01.jpg": 0,
        "test/n000001/0001_01.jpg": (20, 0),  # f
        "test/n000001/0002_01.jpg": (50, 10),  # g
        "test/n000009/0001_01.jpg": (70, 35),  # m
        "test/n000009/0002_01.jpg": (80, 45),  # n
    }
    folder = embed(open_images(vggface(tmp_path / "v", images, people)), tmp_path / "e")
    group = folder.gallery.group
    assert group is not None
    assert group.tolist() == [0, 0, 1, 1]
    truth, curve = curve_of(folder, order, 3, "CMC@1")
    # t = 0: f finds g (30 before 50), g finds m (20 before 30): half of the women. m and n find each other: all men.
    # t = 1: f and g find each other (10; m is 25 away from g), and so do m and n.
    # t = 1/2 with the women first: g is 10 from f (new) and 20 from m (old): the gap is closed.
    # t = 1/2 with the men first: g is 30 from f (old) and 25 from m (new): still wrong. f: 30 from g, 35 from m.
    pair = pair_of(folder)
    old, new = (
        replay(UpgradePair(s, s), truth, np.array(order), 3, ("CMC@1",), "l2") for s in (pair.backward, pair.forward)
    )
    names = ("old", "new", "rm_naive")
    curves = {(name, "given", "raw"): judge([c], 1) for name, c in zip(names, (old, new, curve), strict=True)}
    found, _ = slice_tables(curves, ("CMC@1",), [Slice("group", ("0", "1"), group)], Evaluation().margin)
    own = found[found.method == "rm_naive"]
    assert own[own.group == "0"].value.tolist() == [1 - value for value in gap]
    assert own[own.group == "1"].value.tolist() == [1, 1, 1]
    assert own[own.group == GAP].value.tolist() == gap
    assert found[(found.method == "old") & (found.group == GAP)].value.tolist() == [0.5] * 3


def test_protocols_split_the_classes_of_data_sets(tmp_path: Path) -> None:
    """Labels are the data sets' own numbers, with gaps."""
    train = {f"bounding_box_train/{who:04d}_c1s1_000001_00.jpg": 0 for who in (2, 7, 10, 11, 1500)}
    others = {"query/0001_c1s1_000001_00.jpg": 0, "bounding_box_test/0001_c2s1_000001_00.jpg": 0}
    identities = open_images(market(tmp_path / "m", train | others)).items("train").labels_N
    assert split_classes(identities, Protocol("extended")) == ([2, 7], [2, 7, 10, 11, 1500])

    landmarks = {100 * i + 3: [hexadecimal(2 * i), hexadecimal(2 * i + 1)] for i in range(10)}
    settings = small_gldv2(tmp_path / "g")
    gldv2_tables(tmp_path / "g", landmarks, INDEX, QUERIES)
    old, new = split_classes(open_images(settings).items("train").labels_N, Protocol("open", old_share=0.3, seed=1))
    assert (old, new) == ([403, 703, 803], [3, 103, 203, 303, 503, 603, 903])

    genders = {f"n{i:06d}": "f" if i % 3 == 0 else "m" for i in range(1, 13)}
    faces: dict[str, Levels | int] = {f"train/{person}/0001_01.jpg": 0 for person in genders}
    people = open_images(vggface(tmp_path / "v", faces | {"test/n000001/0001_01.jpg": 0}, genders)).items("train")
    old, _ = split_classes(people.labels_N, Protocol("biased", old_counts=(1, 5)), people.groups_N)
    assert (len(old), len([who for who in old if who % 3 == 0])) == (6, 1)


def official_map(predictions: dict[int, list[int]], solution: dict[int, set[int]], most: int = 100) -> float:
    """The metric as the data set's authors define it: (1/Q) sum_q 1/min(m_q, 100) sum_k P_q(k) rel_q(k).

    m_q: number of positives of query q; k up to min(n_q, 100) of its n_q predictions; P_q(k): share of positives among
    the first k; rel_q(k): 1 if the k-th prediction is a positive, else 0.
    """
    total = 0.0
    for query, predicted in predictions.items():
        right, of_query = solution[query], 0.0
        for k in range(1, min(len(predicted), most) + 1):
            precision = len(right.intersection(predicted[:k])) / k
            relevance = 1 if predicted[k - 1] in right else 0
            of_query += precision * relevance
        total += of_query / min(len(right), most)
    return total / len(predictions)


def test_the_official_metric_on_random_cases() -> None:
    """270 rankings of 30 queries per gallery: with ties, queries without positives, and more positives than the cut."""
    cases = deep = empty = 0
    for seed, n_gallery in enumerate((20, 120, 300)):
        rng = np.random.default_rng(seed)
        # Integers on a line: distances are exact, and many tie.
        at = {name: rng.integers(0, 40, n_gallery).astype(np.float32) for name in ("old", "new")}
        of_queries = {name: rng.integers(0, 40, 30).astype(np.float32) for name in at}
        sizes = rng.integers(0, 1 + n_gallery * 3 // 4, 30) * (rng.random(30) > 0.2)
        solution = {q: set(rng.permutation(n_gallery)[:size].tolist()) for q, size in enumerate(sizes)}
        truth = GroundTruth.from_positives([sorted(solution[q]) for q in solution], n_gallery=n_gallery)
        old, new = (RetrievalSystem(of_queries[name][:, None], at[name][:, None]) for name in at)
        order = rng.permutation(n_gallery)
        curve = replay(UpgradePair(old, new), truth, order, 3, ("mAP@100", "mAP@7"), "l2")
        scored = [q for q in solution if solution[q]]
        assert truth.skipped.tolist() == [q for q in solution if not solution[q]]
        for point, done in enumerate((0, n_gallery // 2, n_gallery)):
            side = {int(g): "new" if i < done else "old" for i, g in enumerate(order)}
            predictions = {}
            for q in scored:
                distance = [abs(of_queries[side[g]][q] - at[side[g]][g]) for g in range(n_gallery)]
                predictions[q] = sorted(range(n_gallery), key=distance.__getitem__)  # stable: ties by position
            for metric, most in (("mAP@100", 100), ("mAP@7", 7)):
                own = [official_map({q: predictions[q]}, solution, most) for q in scored]
                np.testing.assert_allclose(curve.per_query[metric][:, point], own, rtol=1e-12)
                mean = official_map(predictions, solution, most)
                assert curve.values(metric)[point] == pytest.approx(mean, rel=1e-12)
            cases += len(scored)
        deep += sum(len(solution[q]) > 100 for q in scored)
        empty += len(truth.skipped)
    assert (cases >= 200, deep >= 10, empty >= 10) == (True, True, True)
