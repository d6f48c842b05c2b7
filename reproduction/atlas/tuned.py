"""Models that were tuned from another one, on items that are in no gallery, query or map where there are labels.

By contrast in a batch: an item's partner is nearer to it than all partners of others. Partners are of the same class;
without classes, a sentence of a text and the rest of it (the inverse cloze task, Lee et al. 2019, section 4).
"""

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ray_backfill.core.progress import track
from ray_backfill.core.runkey import RunKey, fingerprint
from ray_backfill.core.stages import begin_stage, finish_stage

# Items to tune on, beside those that a collection is embedded from.
TUNE = "tune"


@dataclass(frozen=True)
class Tuning:
    """How a model is tuned. pairs: of partners, which are drawn once."""

    pairs: int
    batch: int
    rate: float
    scale: float = 20.0


Pair = tuple[Any, Any, Any]


def tuned(to: Path, source: Path, tuning: Tuning, base: str, make: Callable[[Sequence[Pair], Path], None]) -> Path:
    """The folder ``to`` with what ``make`` writes there from pairs; not made again for the same items and settings.

    source: file of the items. base: mark of the model that is tuned.
    """
    key = RunKey("tuned", asdict(tuning), {"items": fingerprint(source.read_bytes()), "base": base})
    if not begin_stage(to, key, overwrite=True):
        make(pairs_of(_read(source), tuning.pairs), to)
        finish_stage(to, {})
    return to


def _read(source: Path) -> list[tuple[Any, Any]]:
    """(text or image, class), None without classes, of each line or each image of a tar file."""
    if source.suffix == ".jsonl":
        rows = [json.loads(line) for line in source.open(encoding="utf-8")]
        return [(row["text"], row.get("label")) for row in rows]
    from PIL import Image

    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(source, "r:") as tar:
        for member in tar:
            name, _, kind = member.name.partition(".")
            content = tar.extractfile(member)
            assert content is not None
            found.setdefault(name, {})[kind] = content.read()
    return [(Image.open(io.BytesIO(each["png"])).convert("RGB"), each["cls"].decode()) for each in found.values()]


def pairs_of(items: Sequence[tuple[Any, Any]], number: int) -> list[Pair]:
    """At most so many (item, partner, class) at random; the class of a text without one is its place."""
    rng, found = np.random.default_rng(0), list[Pair]()
    members: dict[Any, list[int]] = {}
    for place, (_, label) in enumerate(items):
        members.setdefault(label, []).append(place)
    while len(found) < number:
        before = len(found)
        for place in rng.permutation(len(items)):
            item, label = items[place]
            if label is None:
                sentences = [each for each in item.split(". ") if each.strip()]
                if len(sentences) > 1:
                    taken = sentences.pop(int(rng.integers(len(sentences))))
                    found.append((taken, ". ".join(sentences), int(place)))
            elif len(members[label]) > 1:
                partner = rng.choice([each for each in members[label] if each != place])
                found.append((item, items[partner][0], label))
        if len(found) == before:
            break
    return found[:number]


def contrast(network: Any, embed: Callable[[Sequence[Any]], Any], pairs: Sequence[Pair], tuning: Tuning) -> None:
    """Train the network in one pass over the pairs, with a learning rate that falls to 0. embed: items -> (B, d)."""
    import torch
    from torch.nn.functional import cross_entropy, normalize

    torch.manual_seed(0)
    steps = len(pairs) // tuning.batch
    optimiser = torch.optim.AdamW(network.parameters(), tuning.rate)
    falling = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, steps)
    for items, partners, classes in track(_batches(pairs, tuning.batch), "tune", "batches", steps):
        left, right = (normalize(embed(each), dim=1) for each in (items, partners))
        names = np.array([str(each) for each in classes])
        same = torch.from_numpy((names[:, None] == names) & ~np.eye(len(names), dtype=bool))
        scores = (tuning.scale * left @ right.T).masked_fill(same, float("-inf"))
        own = torch.arange(len(names))
        loss = (cross_entropy(scores, own) + cross_entropy(scores.T, own)) / 2
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        falling.step()


def _batches(pairs: Sequence[Pair], size: int) -> Iterator[tuple[list[Any], list[Any], list[Any]]]:
    for first in range(0, len(pairs) - size + 1, size):
        items, partners, classes = zip(*pairs[first : first + size], strict=True)
        yield list(items), list(partners), list(classes)
