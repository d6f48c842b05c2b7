"""What tests of several rooms use."""

from collections.abc import Iterator

import faiss
import pytest

from ray_backfill.cluster.session import session


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One Ray for all tests that use one in this process."""
    with session():
        yield


@pytest.fixture
def one_faiss_thread() -> Iterator[None]:
    """Threads that build a graph together give another one each time."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(threads)
