"""What is wrong with the input is said in one line, also where an actor or a training worker has found it."""

import pickle

import pytest
from ray.exceptions import RayTaskError
from ray.train import WorkerGroupError
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback

from ray_backfill.cli import run_job
from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets import NotThereError
from tests.command import ended_by

FOUND = InputError("cannot open s3://bucket: check its name")


def of_an_actor() -> Exception:
    return RayTaskError("f", "a wall of text", FOUND).as_instanceof_cause()


def of_ray_train() -> Exception:
    wrapped = UserExceptionWithTraceback(FOUND, "a wall of text")
    return pickle.loads(pickle.dumps(WorkerGroupError("a wall of text", {1: wrapped})))


@pytest.mark.parametrize("error", [FOUND, of_an_actor(), of_ray_train()])
def test_input_errors_are_one_line_wherever_they_come_from(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended_by(error, capsys).error == str(FOUND)


def test_other_errors_keep_their_traceback() -> None:
    def main() -> None:
        try:
            raise FOUND
        except InputError:
            raise WorkerGroupError("lost", {0: OSError("gone")}) from RuntimeError("a mistake of ours")

    with pytest.raises(WorkerGroupError, match="lost"):
        run_job(main)


def test_a_folder_that_is_not_the_data_set_is_one_line_also_from_an_actor(capsys: pytest.CaptureFixture[str]) -> None:
    found = NotThereError("places365: there is no such folder", "Where to get it: its home page")
    again = pickle.loads(pickle.dumps(found))
    assert str(again) == str(found)
    for error in (found, RayTaskError("f", "a wall of text", again).as_instanceof_cause()):
        assert ended_by(error, capsys).error == str(found)
