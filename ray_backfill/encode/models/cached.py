"""``cached:FOLDER``: vectors that a run of MTEB has kept, looked up by their texts. Nothing is embedded.

The CachedEmbeddingWrapper of mteb 1 keeps CACHE/TASK, that of mteb 2 CACHE/TASK/query and CACHE/TASK/document. Each has
index.json (SHA-256 of a text -> row) and either vectors.npy, which is no .npy but float32 numbers without a header, in
rows as long as the file ``dimension`` says, or vectors.faiss. None of them is unpickled.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.encode.encoder import PROBES, TEXT, ModelKind
from ray_backfill.encode.spec import SIDES, Spec


class CachedModel:
    """Texts have the vectors in the cache of their side, probes those of its first rows, by which it is recognised."""

    batch, has_prompts = 256, False

    def __init__(self, spec: Spec) -> None:
        self._spec, root = spec, Path(spec.name)
        has_sides = any((root / side / "index.json").is_file() for side in SIDES)
        self._sides = {side: _open(root / side if has_sides else root) for side in SIDES}

    def prepare(self, items: Sequence[Any], side: str) -> Any:
        rows_of, _ = self._sides[side]
        probes = {text: row % len(rows_of) for row, text in enumerate(PROBES)}
        rows = [rows_of.get(hashlib.sha256(item.encode()).hexdigest(), probes.get(item, -1)) for item in items]
        if -1 in rows:
            raise InputError(
                f"{self._spec} has no vector of {rows.count(-1)} of {len(rows)} texts on the side {side}, such as "
                f"{items[rows.index(-1)][:60]!r}; give the task's own data set as --texts, whole and without prompts"
            )
        return rows

    def __call__(self, prepared: Any, side: str) -> Any:
        return self._sides[side][1][prepared]

    def identity(self) -> dict[str, Any]:
        marks = {}
        for side, (rows_of, vectors) in self._sides.items():
            mark = hashlib.blake2b(json.dumps(rows_of).encode(), digest_size=12)
            mark.update(np.ascontiguousarray(vectors[: len(rows_of)]).data)
            marks[side] = mark.hexdigest()
        return marks


def _open(folder: Path) -> tuple[dict[str, int], NDArray[np.float32]]:
    """Rows by hash, and (N, d) vectors. Raises InputError for a folder that is no whole cache."""
    if not (folder / "index.json").is_file():
        raise InputError(f"{folder} has no index.json; name CACHE/TASK of mteb's CachedEmbeddingWrapper(model, CACHE)")
    try:
        rows_of = {text: int(row) for text, row in json.loads((folder / "index.json").read_text("utf-8")).items()}
        if (faiss := folder / "vectors.faiss").is_file():
            from ray_backfill.engine.index.stored import read_stored_vectors

            stored = read_stored_vectors(faiss)
            vectors = stored.vectors(0, stored.rows)
        else:
            numbers, dims = np.memmap(folder / "vectors.npy", np.float32, "r"), int((folder / "dimension").read_text())
            vectors = numbers[: len(numbers) // dims * dims].reshape(-1, dims)
    except (OSError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{folder} cannot be read as a cache of mteb: {error}; let mteb write it again") from error
    # FaissCache counts a text that a batch has twice two times (mteb 2.26), and later texts then have wrong rows.
    if sorted(rows_of.values()) != [*range(len(rows_of))] or not 0 < len(rows_of) <= len(vectors):
        raise InputError(
            f"{folder}: the rows in index.json are not those of the {len(vectors):,} vectors beside it; let mteb write "
            "the cache again, by its NumpyCache"
        )
    return rows_of, vectors


MODELS = (
    ModelKind(
        "cached", (TEXT,), "cached:CACHE/TASK", "The vectors that mteb's CachedEmbeddingWrapper kept of a task.",
        lambda spec, modality, device: CachedModel(spec),
    ),
)  # fmt: skip
