"""What the stages of a service cost beside the plain replay, in the same run.

    python -m benchmarks.service_stages                     # 20,000 x 20,000 x 128; two minutes on two cores
    python -m benchmarks.service_stages --queries 500 --gallery 1000000    # its memory at a million items

The plain replay is cut at 100 and compares one pair of systems in one order. Behind it, each partition returns 100
results, and a text list of 100 is fused with the merged list. Unavoidable is the search of the plain replay without its
short cuts: two searches that keep 100 of each side. In a changing gallery, ``--changing`` of the items are deleted, and
as many are inserted. Times are the best of repeats.
"""

import argparse
import resource
import time
from collections.abc import Callable

import numpy as np

from ray_backfill.engine.replay import Served, replay_pairs
from ray_backfill.engine.systems import GroundTruth, RetrievalSystem
from ray_backfill.pipeline.changes import Changes
from ray_backfill.pipeline.lexical import TextLists
from ray_backfill.pipeline.lists import Fusion, Stages
from ray_backfill.pipeline.replay import replay_service
from ray_backfill.pipeline.service import Service


def best_of(repeats: int, run: Callable[[], object]) -> float:
    """Seconds of the quickest run, after one that compiles."""
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def main() -> None:
    """Print the times and their ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--queries", type=int, default=20_000)
    parser.add_argument("--gallery", type=int, default=20_000)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("--points", type=int, default=11)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--changing", type=float, default=0.05)
    given = parser.parse_args()
    rng, n, q, k = np.random.default_rng(0), given.gallery, given.queries, 100
    centres = rng.normal(size=(200, given.dimensions)).astype(np.float32)
    of_item, of_query = rng.integers(0, 200, n), rng.integers(0, 200, q)

    def system(noise: float) -> RetrievalSystem:
        query, gallery = (
            centres[classes] + noise * rng.normal(size=(len(classes), given.dimensions)).astype(np.float32)
            for classes in (of_query, of_item)
        )
        return RetrievalSystem(query, gallery)

    systems = [system(3.0), system(2.0)]
    positives = [rng.choice(n, 5, replace=False) for _ in range(q)]
    truth = GroundTruth.from_positives(positives, n_gallery=n)
    item = np.stack([rng.choice(n, k, replace=False) for _ in range(q)])
    text = TextLists(item, np.sort(rng.random((q, k)))[:, ::-1].copy())
    served, metrics = [Served(0, 1, {"random": rng.permutation(n)})], ("mAP@100", "CMC@1")

    def replay_behind(stages: Stages) -> None:
        replay_service(systems, served, truth, given.points, metrics, "cosine", Service(stages, text))

    plain = best_of(given.repeats, lambda: replay_pairs(systems, served, truth, given.points, metrics))
    print(f"{'plain replay, cut at 100':40} {plain:7.2f} s")
    for name, stages in (
        ("100 of each partition, merged", Stages(k, k)),
        ("and fused with a text list, rrf", Stages(k, k, Fusion("rrf", 60, (1, 1), False, k, k))),
        ("and fused with a text list, minmax", Stages(k, k, Fusion("minmax", 60, (1, 1), False, k, k))),
        ("three lists, rrf", Stages(k, k, Fusion("rrf", 60, (1, 1), True, k, k))),
    ):
        seconds = best_of(given.repeats, lambda stages=stages: replay_behind(stages))  # type: ignore[misc]
        print(f"{name:40} {seconds:7.2f} s   {seconds / plain:5.2f} x", flush=True)
    kind, nothing = rng.random(n) / given.changing, np.zeros(n)
    inserted, deleted = (np.where(kind.astype(int) == of, rng.random(n), nothing) for of in (0, 1))
    changing = Service(Stages(k, k), changes=Changes(inserted, nothing, deleted))
    seconds = best_of(
        given.repeats, lambda: replay_service(systems, served, truth, given.points, metrics, "cosine", changing)
    )
    print(f"{'100 of each, in a changing gallery':40} {seconds:7.2f} s   {seconds / plain:5.2f} x", flush=True)
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB")


if __name__ == "__main__":
    main()
