"""How often ``ray-backfill doctor`` finds rows of another model in a column, and how often it is wrong.

    python -m reproduction.atlas --data-root PATH --out runs/atlas      # embeds the collections
    python -m benchmarks.foreign_rows runs/atlas/COLLECTION ... [--trials 50] [--shares 0.001 0.01 0.1] [--in-order]

A trial draws 80 % of a collection's items, but no more than 4,000, and their vectors by one model; some rows, drawn at
random, hold another model's vector of the same item. All vectors have length 1, so that lengths tell nothing, and the
longer ones of a pair are cut to the dimensions of the shorter ones. Then the columns of one model that could be taken
for two: whole collections, and mixtures of two collections. Last, how far two models are apart that this cannot tell.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ray_backfill.core.schema import read_checked
from ray_backfill.data.columns import part_files
from ray_backfill.data.foreign import foreign_rows, jump
from ray_backfill.data.write import vectors_of
from ray_backfill.engine.distances import normalise
from ray_backfill.engine.systems import FloatArray

SHARES = (0.001, 0.01, 0.1)
TEXTS, IMAGES = ("nfcorpus", "banking77"), ("photographs",)
# Collections, the column's model, and that of the foreign rows.
MIXTURES = (
    (TEXTS, "minilm", "wordllama-256"),
    (TEXTS, "wordllama-256", "minilm"),
    (TEXTS, "static", "minilm"),
    (TEXTS, "glove", "minilm"),
    (IMAGES, "lite0-128", "lite1-128"),
    (IMAGES, "lite0-96", "lite0-128"),
    (("cranfield",), "minilm", "minilm-tuned"),
)
HONEST = ("minilm", "wordllama-256", "static", "glove", "lsa", "lite0-128", "colours")
# Two collections by one model, the largest share of the rows from the second.
SUBJECTS = (
    ("nfcorpus", "banking77", ("minilm", "wordllama-256", "static")),
    ("banking77", "nfcorpus", ("minilm", "wordllama-256", "static")),
    ("omniglot", "photographs", ("lite0-128",)),
)
# Models of which one was made from the other, or sees other pixels: what embedding a sample again would see.
SIBLINGS = (("cranfield", "minilm", "minilm-tuned"), ("photographs", "lite0-96", "lite0-128"))
_MOST, _SHARE = 4_000, 0.8


def read(folders: Sequence[Path], collection: str, model: str) -> FloatArray | None:
    """(N, d) vectors of length 1 of a collection's gallery; None if no folder holds them."""
    for folder in folders:
        gallery = folder / "models" / model / "gallery.parquet"
        if folder.name == collection and gallery.exists():
            tables = [read_checked(part).select(["new"]).replace_schema_metadata() for part in part_files(gallery)]
            return normalise(vectors_of(pa.concat_tables(tables)["new"]))
    return None


def drawn(rows: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(rows)[: min(_MOST, int(_SHARE * rows))]


def trial(
    own_Nd: FloatArray, foreign_Md: FloatArray, share: float, is_same_item: bool, in_order: bool, seed: int
) -> tuple[bool, int]:
    """Whether rows are found, and how many are foreign. is_same_item: row i of both is of one item."""
    rng = np.random.default_rng(seed)
    rows = drawn(len(own_Nd), rng)
    rows = np.sort(rows) if in_order else rows
    dims = min(own_Nd.shape[1], foreign_Md.shape[1])
    mixed, count = own_Nd[rows][:, :dims].copy(), round(share * len(rows))
    others = rows[:count] if is_same_item else rng.permutation(len(foreign_Md))[:count]
    mixed[:count] = foreign_Md[others][:, :dims]
    if in_order:
        return jump(mixed) > 0 or len(foreign_rows(mixed)) > 0, count
    return len(foreign_rows(normalise(mixed)[rng.permutation(len(rows))])) > 0, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    parser.add_argument("--in-order", action="store_true", help="foreign rows stand first, the others in their order")
    arguments = parser.parse_args()

    def line(collection: str, what: str, own: FloatArray, other: FloatArray, share: float, is_same_item: bool) -> None:
        ended = [trial(own, other, share, is_same_item, arguments.in_order, seed) for seed in range(arguments.trials)]
        dims, count = min(own.shape[1], other.shape[1]), ended[0][1]
        rows = min(_MOST, int(_SHARE * len(own)))
        hits = sum(is_found for is_found, _ in ended)
        print(f"| {collection} | {what} | {dims:,} | {count:,} of {rows:,} | {hits} of {len(ended)} |", flush=True)

    print("| collection | column, foreign rows | dim. | foreign rows | found |\n|---|---|---|---|---|")
    for collections, model, other in MIXTURES:
        for collection in collections:
            own, foreign = (read(arguments.folders, collection, name) for name in (model, other))
            for share in arguments.shares:
                if own is not None and foreign is not None:
                    line(collection, f"{model}, {other}", own, foreign, share, True)
    print("\n| collection | column of one model | dim. | rows of the second | false alarms |\n|---|---|---|---|---|")
    for collection in dict.fromkeys(folder.name for folder in arguments.folders):
        for model in HONEST:
            own = read(arguments.folders, collection, model)
            if own is not None:
                line(collection, model, own, own, 0.0, True)
    for first, second, models in SUBJECTS:
        for model in models:
            own, foreign = (read(arguments.folders, name, model) for name in (first, second))
            if own is not None and foreign is not None:
                line(f"{first}, {second}", model, own, foreign, max(arguments.shares), False)
    print(
        "\n| collection | two models | cosine of an item's vectors: 1 %, 50 %, 99 % | below 0.999 |\n|---|---|---|---|"
    )
    for collection, model, other in SIBLINGS:
        own, foreign = (read(arguments.folders, collection, name) for name in (model, other))
        if own is not None and foreign is not None:
            cosines = (own * foreign).sum(axis=1)
            said = ", ".join(f"{cosine:.3f}" for cosine in np.quantile(cosines, (0.01, 0.5, 0.99)))
            print(f"| {collection} | {model}, {other} | {said} | {(cosines < 0.999).mean():.1%} |")


if __name__ == "__main__":
    main()
