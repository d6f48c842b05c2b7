"""What paid services will charge, said before they are asked, and what they have charged."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path

import pyarrow.compute as pc
from pyarrow.parquet import FileMetaData

from ray_backfill.core.progress import duration, say
from ray_backfill.core.schema import read_checked
from ray_backfill.encode.encoder import TEXT, tokens_in
from ray_backfill.encode.kinds import all_kinds
from ray_backfill.encode.part import EncodeRequest, tokens_of
from ray_backfill.encode.spec import Spec


def estimate(request: EncodeRequest, missing: Iterable[tuple[str, Path]], actors: int) -> None:
    """Say how much each paid model will read, about what that costs, and how long it takes at its limits per minute,
    which the actors share.
    """
    missing = list(missing)
    for name, spec in request.models.items():
        kind = all_kinds()[spec.kind]
        if not missing or kind.reads is None:
            continue
        items = characters = requests = 0
        busy_s = [0.0] * max(1, min(actors, len(missing)))  # of each actor, which takes the next part when it is free
        for split, path in missing:
            if name in request.models_of(split):
                table = read_checked(path, [TEXT])
                items += len(table)
                prompt = len(spec.prompt.get("query" if split == "queries" else "document", ""))
                lengths = pc.add(pc.utf8_length(table[TEXT]), prompt)
                read = pc.sum(pc.min_element_wise(lengths, kind.reads(spec))).as_py() or 0
                asked = -(-len(table) // (spec.batch or kind.batch))
                characters, requests = characters + read, requests + asked
                minutes = max(asked / (spec.rpm or inf), tokens_in(read) / (spec.tpm or inf))
                busy_s[busy_s.index(min(busy_s))] += 60 * len(busy_s) * minutes
        tokens = tokens_in(characters)
        takes = (
            f"about {duration(round(max(busy_s)))} or longer" if max(busy_s) else "hours unknown without rpm= or tpm="
        )
        price = _dollars(spec, tokens, "about ")
        say(
            f"{spec} will read {items:,} texts, about {tokens:,} tokens{price}, in about {requests:,} requests, {takes}"
        )


def bill(parts: Sequence[FileMetaData], models: Mapping[str, Spec]) -> dict[str, int]:
    """Say how many tokens each paid model has read for these parts of embeddings; returns them by model."""
    paid = {name: spec for name, spec in models.items() if all_kinds()[spec.kind].reads}
    of_parts = map(tokens_of, parts) if paid else ()
    found = {name: sum(of_part.get(name, 0) for of_part in of_parts) for name in paid}
    for name, spec in paid.items():
        say(f"{spec} has read {found[name]:,} tokens{_dollars(spec, found[name], '')}")
    return found


def _dollars(spec: Spec, tokens: int, about: str) -> str:
    if not spec.price:
        return ""
    return f", {about}${tokens * spec.price / 1e6:,.2f} at ${spec.price:g} a million"
