"""The exact engine: replays a backfill on arrays. No files, no Ray; torch only in ``device``."""
