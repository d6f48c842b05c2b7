"""Arrays whose files are cut off or lie about what they hold: one line, whatever numpy makes of them."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.data.sources import open_source


def npy(header: str = "") -> bytes:
    """The bytes of a .npy file of (8, 4) numbers, or with another header."""
    written = io.BytesIO()
    np.save(written, np.ones((8, 4), np.float32))
    whole = written.getvalue()
    if not header:
        return whole
    return whole[:8] + len(header).to_bytes(2, "little") + header.encode() + whole[-128:]


def header_of(shape: str, kind: str = "<f4") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n"


WHOLE = npy()
LIES = {
    "cut off": WHOLE[:-60],
    "cut off in its header": WHOLE[:40],
    "cut off in its first bytes": WHOLE[:4],
    "empty": b"",
    "more rows": npy(header_of("(9999, 4)")),
    "more rows than any memory has": npy(header_of("(1 << 50, 1 << 10)".replace("1 << 50", str(1 << 50)))),
    "rows beyond any number": npy(header_of(f"({10**30}, 4)")),
    "rows below zero": npy(header_of("(-8, 4)")),
    "no type": npy(header_of("(8, 4)", "nonsense")),
    "objects": npy(header_of("(8, 4)", "|O")),
    "no shape": npy("{'descr': '<f4', 'fortran_order': False}\n"),
    "no dictionary": npy("hello\n"),
    "deep brackets": npy("(" * 3000 + "\n"),
    "no dimensions": npy(header_of("(32, 0)")),
    "another version": WHOLE[:6] + b"\x09\x00" + WHOLE[8:],
    "not an array": b"id,old,new\n1,2,3\n",
}


@pytest.mark.parametrize("packed", ["npy", "npz", "compressed npz"])
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_one_line(lie: str, packed: str, tmp_path: Path) -> None:
    path = tmp_path / f"array.{packed[-3:]}"
    if packed == "npy":
        path.write_bytes(LIES[lie])
    else:
        how = zipfile.ZIP_DEFLATED if "compressed" in packed else zipfile.ZIP_STORED
        with zipfile.ZipFile(path, "w", how) as archive:
            archive.writestr("old.npy", LIES[lie])
    with pytest.raises(InputError) as refused:
        open_source(str(path))
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("kept", [0, 1, 20, 100, 200, -1, -30])
def test_an_archive_that_is_cut_off_is_one_line(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    np.savez(path, old=np.ones((8, 4)))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match="cannot be read as numbers or text"):
        open_source(str(path))


def test_an_archive_whose_data_are_changed_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    np.savez_compressed(path, old=np.random.default_rng(0).normal(size=(200, 4)))
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(InputError, match="cannot be read as numbers or text"):
        open_source(str(path))


def test_an_archive_without_arrays_is_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "none.npz")
    with pytest.raises(InputError, match="holds no array"):
        open_source(str(tmp_path / "none.npz"))
