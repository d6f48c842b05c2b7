"""What tests of several rooms use."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

# Before anything loads torch, faiss or BLAS, also in the workers of Ray: several processes test at a time, and threads
# that wait for each other on busy cores take many times as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray's workers are at niceness 15: beside tests that compute, a drill would wait for minutes.
os.environ.setdefault("RAY_worker_niceness", "0")

# No test but those marked gpu needs a GPU; with one, a local Ray would place other workers than without.
os.environ.update({} if os.environ.get("GPU_TESTS") else {"CUDA_VISIBLE_DEVICES": ""})

import faiss
import pytest
from hypothesis import settings
from PIL import Image

from tests.command import Command, Ended
from tests.faulty_store import Faults, faulty
from tests.object_store import client_variables, new_bucket, served

# A shell without job control starts what runs in the background with Ctrl-C ignored, and its children keep that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# `make test-heavy` draws four times as many: --hypothesis-profile=many.
settings.register_profile("few", max_examples=60, deadline=None)
settings.register_profile("many", max_examples=240, deadline=None)
settings.load_profile("few")


# What starts a Ray takes long: `make test` runs these, `make test-all` all.
WITH_RAY = {
    "test_any_number_of_shards_gives_the_curves_of_one_process",
    "test_live_quality_is_that_of_the_replay",
    "test_churn_and_rollback",  # a shard is killed
}
# Tests that start a Ray: name of a group, which one process runs -> its files.
GROUPS = {
    "the shared Ray": ("tests/cluster",),
    "their own": (
        *("tests/jobs", "tests/power", "tests/encode/test_stage.py", "tests/forecast/test_forecasting.py"),
        *("tests/core/test_secrets.py", "tests/reproduction/test_experiment.py", "tests/test_readme.py"),
        "tests/test_examples_on_ray.py",
    ),
}
_ray = ExitStack()
# Whether the test that runs looks at charts: drawing takes most of the time of a page.
_is_drawn = False


def pytest_configure() -> None:
    """No test reads credentials of whoever runs it, or asks for those of an instance."""
    os.environ.update(dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull))
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        os.environ.pop(name, None)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the shared Ray, and let it begin. A test that starts a Ray in another way is marked by hand."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: an address differs in each process: give ids to parametrize")
        if "ray_session" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")
        if item.get_closest_marker("cluster"):  # no signal ends a wait inside Ray's C++ code
            item.add_marker(pytest.mark.timeout(1500, method="thread"))
            if item.name.partition("[")[0] not in WITH_RAY:
                item.add_marker("full")
            if not item.nodeid.startswith(tuple(file for files in GROUPS.values() for file in files)):
                raise pytest.UsageError(f"{item.nodeid} starts a Ray: add its file to GROUPS in tests/conftest.py")
    items[:] = [item for item in items if bool(item.get_closest_marker("gpu")) == bool(os.environ.get("GPU_TESTS"))]
    items.sort(key=lambda item: item.get_closest_marker("cluster") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each process takes the next file when it has none; those that start a Ray are two groups, which begin.

    Three at a time, on two cores, have run into their timeouts.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return next((group for group, files in GROUPS.items() if file.startswith(files)), file)

    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """One Ray in a process for all tests that follow each other and use it, and charts for those that look at them."""
    global _is_drawn
    _is_drawn = item.get_closest_marker("drawn") is not None
    if item.get_closest_marker("cluster") is None:  # keywords also hold the names of folders
        _ray.close()
    elif "ray_session" in getattr(item, "fixturenames", ()):
        from ray_backfill.workers.session import session

        _ray.enter_context(session())  # does nothing where there is one


def pytest_sessionfinish() -> None:
    _ray.close()


@pytest.fixture(scope="session", autouse=True)
def drawn_if_marked() -> Iterator[None]:
    """Pages have empty charts, but for tests with the mark ``drawn`` and in other processes."""
    from ray_backfill.page import parts
    from ray_backfill.page.charts import Chart

    drawn_charts, drawn_picture = parts.page_charts, parts._png
    empty = BytesIO()
    Image.new("L", (1, 1)).save(empty, "png")

    def page_charts(charts: Sequence[Chart], name: str) -> list[parts.PageChart]:
        from ray_backfill.page import drawing

        with pytest.MonkeyPatch.context() as patch:
            if not _is_drawn:
                patch.setattr(drawing, "chart_svg", lambda chart, name, label: f'<svg aria-label="{name}"></svg>')
            return drawn_charts(charts, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "page_charts", page_charts)
        patch.setattr(parts, "_png", lambda charts: drawn_picture(charts) if _is_drawn else empty.getvalue())
        yield


@pytest.fixture(scope="session")
def ray_session() -> None:
    """A test that uses this has a Ray."""


@pytest.fixture(scope="session", params=[pytest.param("moto", marks=pytest.mark.heavy), "ministack"])
def s3_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of S3: the quicker one. tests/core asks both in every suite."""
    with served(request.param, tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture
def store(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a new bucket, which this process and those that it starts may use."""
    from ray_backfill.core.stores import open_bucket

    open_bucket.cache_clear()
    for name, value in client_variables(s3_server, tmp_path / "copies").items():
        monkeypatch.setenv(name, value)
    return f"s3://{new_bucket(s3_server)}"


@pytest.fixture
def faults(store: str, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """What a proxy before the server of ``store`` does wrong, for this process and those that it starts."""
    monkeypatch.setattr("ray_backfill.core.stores._TIMEOUT_S", 1.0)
    monkeypatch.setattr("ray_backfill.core.stores._RETRY_S", 1.5)
    monkeypatch.setattr("ray_backfill.core.run_lock._PATIENCE_S", 1.5)
    with faulty(s3_server) as (address, faults):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        yield faults


@pytest.fixture(autouse=True)
def no_ray_without_the_mark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-m "not cluster"`` promises that no Ray is started."""
    if request.node.get_closest_marker("cluster") is None:
        monkeypatch.setenv("RAY_ADDRESS", "a test that starts Ray needs pytest.mark.cluster")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line in this process. What was printed before is not counted."""
    from ray_backfill.cli.main import main

    def run(*words: object) -> Ended:
        monkeypatch.setattr("sys.argv", ["ray-backfill", *map(str, words)])
        capsys.readouterr()
        try:
            main()
        except SystemExit as stopped:
            return Ended(int(str(stopped.code or 0)), *capsys.readouterr())
        return Ended(0, *capsys.readouterr())

    return run


@pytest.fixture
def one_faiss_thread() -> Iterator[None]:
    """Threads that build a graph together give another one each time."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(threads)
