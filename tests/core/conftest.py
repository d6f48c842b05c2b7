"""Fixtures of this room."""

from collections.abc import Iterator

import pytest

from tests.object_store import SERVERS, served


@pytest.fixture(scope="session", params=SERVERS)
def s3_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of each server of S3: here requests are made, which the two answer differently."""
    with served(request.param, tmp_path_factory.mktemp("server")) as address:
        yield address
