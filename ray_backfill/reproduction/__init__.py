"""From results folders of several seeds to a page: what came out, what the papers have, and which claims hold."""

from ray_backfill.reproduction.page import PageInput, write_page
from ray_backfill.reproduction.runs import SeedRun

__all__ = ["PageInput", "SeedRun", "write_page"]
