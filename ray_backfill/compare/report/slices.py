"""Who gains and who loses: groups of queries in words. Computes nothing."""

from ray_backfill.compare.report.results import Results, Row
from ray_backfill.compare.report.wording import FEW
from ray_backfill.compare.tables.slices import FEWEST_QUERIES, SliceRow
from ray_backfill.core.schema import NO
from ray_backfill.page.numbers import listed, percent_sign, points

TOO_FEW = "too few to judge"


def slice_rows(results: Results, row: Row) -> list[SliceRow]:
    """What the method of a row does to each group of queries."""
    key = row.method, row.order, row.merge, row.metric
    return [each for each in results.slices if (each.method, each.order, each.merge, each.metric) == key]


def slice_sentences(results: Results, row: Row) -> list[str]:
    """Which groups fall below the old service, and how many are too small to tell; [] without slices."""
    rows = slice_rows(results, row)
    if not rows:
        return []
    below = sorted((each for each in rows if each.stays_at_old == NO), key=lambda each: each.lowest_vs_old)
    few = sum(each.queries < FEWEST_QUERIES for each in rows)
    if below:
        told = [
            f"{each.slice} {each.group} by {points(-each.lowest_vs_old)} at {percent_sign(each.lowest_at, 0)} of the "
            "backfill"
            for each in below[:FEW]
        ]
        told += [f"{len(below) - FEW} more"] if len(below) > FEW else []
        said = f"These groups of queries fall below the old service in {row.metric}: {listed(told, 'and')}."
    else:
        said = f"No group of queries is shown to fall below the old service in {row.metric}."
    small = f"{few} of {len(rows)} groups have fewer than {FEWEST_QUERIES} queries, {TOO_FEW}."
    return [said, *([small] if few else [])]
