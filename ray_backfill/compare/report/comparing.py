"""One method against others: the paired differences of AUCs that a results folder holds. Computes nothing."""

from collections.abc import Sequence

from ray_backfill.compare.report.results import Results
from ray_backfill.compare.report.selection import find_row, rivals
from ray_backfill.compare.report.wording import variant_cells
from ray_backfill.core.errors import InputError
from ray_backfill.page import Compared, Differences, make_differences


def compare(
    results: Results, method: str, others: Sequence[str], metric: str, order: str = "", merge: str = ""
) -> Differences:
    """A method against others by AUC; see ``Results.compare``.

    Raises:
        InputError: unknown names, or rows that were not compared.
    """
    row = find_row(results, method, metric, order, merge)
    found = rivals(results, row)
    missing = [name for name in others if all(other.method != name for other, _ in found)]
    if missing or not found:
        raise InputError(
            f"these results do not compare {row.method} with {missing[0] if missing else 'anything'} in {metric}; "
            f"their methods: {', '.join(results.methods)}"
        )
    lines = [
        Compared({"other": results.name(other)} | variant_cells(results, other), row.auc, other.auc, difference)
        for other, difference in found
        if not others or other.method in others
    ]
    of_variant = f" ({results.label(row.variant)})" if results.group(row) else ""
    return make_differences(f"{row.title}{of_variant}: AUC of {metric} minus that of others, in per cent", lines)
