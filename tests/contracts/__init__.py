from collections.abc import Callable, Iterable
from typing import Any

import pytest


def one_of_each(rows: Iterable[Any], kind_of: Callable[[Any], object]) -> list[Any]:
    """All rows; `make test` takes the first one of each kind, and `make test-all` the others too."""
    kinds, found = set[object](), []
    for row in rows:
        kind = kind_of(row)
        found.append(pytest.param(row, marks=pytest.mark.full) if kind in kinds else row)
        kinds.add(kind)
    return found
