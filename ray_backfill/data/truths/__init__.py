"""Ways to know which answers are right: from the folder, from judgements, from clicks, or from the new model itself."""

import re
import sys
from collections.abc import Sequence

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.plugins import load_plugin, plugin_names, rows_from_outside
from ray_backfill.data.truths.folder import GIVEN
from ray_backfill.data.truths.kind import Truth as Truth
from ray_backfill.data.truths.kind import TruthKind as TruthKind
from ray_backfill.data.truths.kind import TruthRequest as TruthRequest


def all_truths() -> dict[str, TruthKind]:
    """Every kind by name."""
    package = sys.modules[__name__]
    modules = (load_plugin(package, name) for name in plugin_names(package) if name != "kind")
    kinds = [kind for module in modules for kind in module.TRUTHS] + rows_from_outside("TRUTHS")
    return {kind.name: kind for kind in kinds}


def parse_truth(words: Sequence[str]) -> tuple[TruthKind, int, str]:
    """The kind that ``--truth`` names, its number K and its argument. No words: what the folder gives.

    Raises:
        InputError: The name is unknown, or its argument is missing or too much.
    """
    if not words:
        return GIVEN, 0, ""
    name, arguments = words[0], words[1:]
    for kind in all_truths().values():
        match = re.fullmatch(kind.name.replace("K", r"(\d+)"), name)
        if not match:
            continue
        k = int(match[1]) if match.groups() else 0
        if match.groups() and not k:
            raise InputError(f"--truth {name}: the number must be above 0")
        if len(arguments) != bool(kind.argument):
            wanted = f"one word after it, {kind.argument}" if kind.argument else "no word after it"
            raise InputError(f"--truth {name} takes {wanted}; got {len(arguments)}")
        return kind, k, arguments[0] if arguments else ""
    raise unknown_name("truth", name, (f"{kind.name} {kind.argument}".strip() for kind in all_truths().values()))
