"""How curves, results and comparisons show themselves: numbers in words, small tables, charts, and parts of pages.

``drawing`` needs matplotlib, ``parts`` jinja2 and ``layout`` rich; who draws or prints imports them.
"""

from ray_backfill.page.numbers import Compared, Difference, Differences, html_table, make_differences

__all__ = ["Compared", "Difference", "Differences", "html_table", "make_differences"]
