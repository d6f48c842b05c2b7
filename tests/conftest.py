"""What tests of several rooms use."""

import os
from collections.abc import Iterator

# Before anything loads torch, faiss or BLAS, also in the workers of Ray: several processes test at a time, and threads
# that wait for each other on busy cores take many times as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray's workers are at niceness 15: beside tests that compute, a drill would wait for minutes.
os.environ.setdefault("RAY_worker_niceness", "0")

import faiss
import pytest
from hypothesis import settings

# `make test` draws a quarter of the examples: --hypothesis-profile=few.
settings.register_profile("many", max_examples=240, deadline=None)
settings.register_profile("few", max_examples=60, deadline=None)
settings.load_profile("many")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the shared Ray. A test that starts a Ray in another way is marked by hand."""
    for item in items:
        if "ray_session" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(autouse=True)
def no_ray_without_the_mark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-m "not cluster"`` promises that no Ray is started."""
    if "cluster" not in request.keywords:
        monkeypatch.setenv("RAY_ADDRESS", "a test that starts Ray needs pytest.mark.cluster")


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One Ray for all tests that use one in this process."""
    from ray_backfill.workers.session import session

    with session():
        yield


@pytest.fixture
def one_faiss_thread() -> Iterator[None]:
    """Threads that build a graph together give another one each time."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(threads)
