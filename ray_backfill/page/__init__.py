"""How curves, results and comparisons show themselves: small tables, and the look of every figure.

``drawing`` needs matplotlib and is imported by those who draw.
"""

from ray_backfill.page.tables import Compared, Difference, Differences, html_table, make_differences

__all__ = ["Compared", "Difference", "Differences", "html_table", "make_differences"]
