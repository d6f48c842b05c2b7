"""Parts on disk survive failures: they are complete or known to be bad."""

from pathlib import Path

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.core.store_path import path_of
from ray_backfill.drill.parts import BadPartError, Embedded, part_path, read_broken, read_part, set_aside, write_part
from ray_backfill.drill.plan import Operation
from tests.faulty_store import Faults

OPERATION = Operation(3, "backfill", np.array([7, 2, 9, 4]))


def embedded(dim: int = 5) -> Embedded:
    vectors = np.random.default_rng(0).normal(size=(3, dim)).astype(np.float32)
    return Embedded(np.array([7, 2, 4]), {"new": vectors}, ((9, "truncated"),))


def test_a_part_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_part(tmp_path, OPERATION, embedded())
    read = read_part(tmp_path, OPERATION)
    assert read.positions.tolist() == [7, 2, 4]
    np.testing.assert_array_equal(read.vectors["new"], embedded().vectors["new"])
    assert read.broken == ((9, "truncated"),)
    assert read_broken(tmp_path, 3).tolist() == [9]
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["part-000003.parquet"], "no temporary file stays"


def test_a_part_of_no_readable_image_has_its_columns(tmp_path: Path) -> None:
    nothing = Embedded(np.empty(0, np.int64), {"new": np.empty((0, 5), np.float32)}, ((7, "a"), (2, "b")))
    operation = Operation(0, "backfill", np.array([7, 2]))
    write_part(tmp_path, operation, nothing)
    assert read_part(tmp_path, operation).vectors["new"].shape == (0, 5)


@pytest.mark.parametrize("cut", [0, 1, 4, 100, -1])
def test_a_cut_part_is_bad(tmp_path: Path, cut: int) -> None:
    write_part(tmp_path, OPERATION, embedded())
    path = part_path(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadPartError, match=r"part-000003.parquet cannot be read") as found:
        read_part(tmp_path, OPERATION)
    assert found.value.number == 3
    set_aside(tmp_path, 3)
    assert not path.exists()


def test_a_flipped_bit_of_a_vector_is_found(tmp_path: Path) -> None:
    part = embedded(dim=64)
    write_part(tmp_path, OPERATION, part)
    path = part_path(tmp_path, 3)
    content = bytearray(path.read_bytes())
    at = bytes(content).find(part.vectors["new"][1].tobytes()[:16])
    if at < 0:  # the pages are compressed: any byte of them will do
        at = 60
    content[at + 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadPartError):
        read_part(tmp_path, OPERATION)


@pytest.mark.parametrize(
    "other",
    [
        Operation(3, "backfill", np.array([7, 2, 9])),
        Operation(3, "backfill", np.array([2, 7, 9, 4])),
        Operation(3, "insert", OPERATION.positions),
    ],
)
def test_a_part_of_another_plan_is_bad(tmp_path: Path, other: Operation) -> None:
    write_part(tmp_path, OPERATION, embedded())
    with pytest.raises(BadPartError, match="other items"):
        read_part(tmp_path, other)


def test_a_missing_part_is_bad(tmp_path: Path) -> None:
    with pytest.raises(BadPartError):
        read_part(tmp_path, OPERATION)


@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_a_part_of_a_store_that_does_not_answer_is_not_bad(store: str, faults: Faults) -> None:
    drill = path_of(store) / "live"
    write_part(drill, OPERATION, embedded())
    assert read_part(drill, OPERATION).positions.tolist() == [7, 2, 4]
    faults.always("denied")
    for read in (lambda: read_part(drill, OPERATION), lambda: read_broken(drill, OPERATION.number)):
        with pytest.raises(InputError, match="the store refuses this"):
            read()
    faults.always("")
    part_path(drill, OPERATION.number).unlink()
    with pytest.raises(BadPartError):
        read_part(drill, OPERATION)
