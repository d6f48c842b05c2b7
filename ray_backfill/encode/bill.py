"""What paid services will charge, said before they are asked, and what they have charged."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow.compute as pc

from ray_backfill.core.progress import say
from ray_backfill.core.schema import read_checked
from ray_backfill.encode.encoder import TEXT, tokens_in
from ray_backfill.encode.kinds import all_kinds
from ray_backfill.encode.part import EncodeRequest, tokens_of
from ray_backfill.encode.spec import Spec


def estimate(request: EncodeRequest, missing: Iterable[tuple[str, Path]]) -> None:
    """Say how many texts each paid model will read, and about what that costs."""
    missing = list(missing)
    for name, spec in request.models.items():
        reads = all_kinds()[spec.kind].reads
        if not missing or reads is None:
            continue
        items = characters = 0
        for split, path in missing:
            if name in request.models_of(split):
                table = read_checked(path, [TEXT])
                items += len(table)
                prompt = len(spec.prompt.get("query" if split == "queries" else "document", ""))
                lengths = pc.add(pc.utf8_length(table[TEXT]), prompt)
                characters += pc.sum(pc.min_element_wise(lengths, reads(spec))).as_py() or 0
        tokens = tokens_in(characters)
        say(f"{spec} will read {items:,} texts, about {tokens:,} tokens{_dollars(spec, tokens, 'about ')}")


def bill(parts: Iterable[Path], models: Mapping[str, Spec]) -> dict[str, int]:
    """Say how many tokens each paid model has read for these files of embeddings; returns them by model."""
    paid = {name: spec for name, spec in models.items() if all_kinds()[spec.kind].reads}
    of_parts = [tokens_of(part) for part in parts] if paid else []
    found = {name: sum(each.get(name, 0) for each in of_parts) for name in paid}
    for name, spec in paid.items():
        say(f"{spec} has read {found[name]:,} tokens{_dollars(spec, found[name], '')}")
    return found


def _dollars(spec: Spec, tokens: int, about: str) -> str:
    if not spec.price:
        return ""
    return f", {about}${tokens * spec.price / 1e6:,.2f} at ${spec.price:g} a million"
