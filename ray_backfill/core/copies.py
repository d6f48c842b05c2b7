"""Where local copies of objects are, and the addresses that these stand for."""

import os
import re
from pathlib import Path

import platformdirs

# The variable that names the folder of local copies.
CACHE = "RAY_BACKFILL_CACHE"


def cache_folder() -> Path:
    """The folder of local copies: RAY_BACKFILL_CACHE, or the user's folder for caches. Its files may be deleted."""
    return Path(os.environ.get(CACHE) or Path(platformdirs.user_cache_dir("ray_backfill")) / "objects")


def with_addresses(text: str) -> str:
    """The text with s3://bucket/name for each path of a local copy, which libraries name in their errors."""
    return re.sub(rf"{re.escape(str(cache_folder()))}/(s3|gs)/", r"\1://", text)
