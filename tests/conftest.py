"""One Ray for all tests that use one in this process."""

from collections.abc import Iterator

import pytest

from ray_backfill.cluster.session import session


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    with session():
        yield
