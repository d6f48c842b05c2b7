"""Fetches the archives of data sets that anyone may have; nothing half-done stands where it could be taken for whole.

pooch downloads and compares the checksum. Its Untar is not used: before Python 3.12 it lets members leave their folder,
and it takes what a killed run has unpacked for whole. A download that was killed leaves a hidden folder
``.<archive>.*.tmp`` in the root, which may be removed.
"""

import tarfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pooch

from ray_backfill.errors import InputError
from ray_backfill.progress import Stage, stage


@dataclass(frozen=True)
class Archive:
    """A tar file on a server, with one top folder, ``folder``. ``md5``: what its owners state, in hexadecimal."""

    url: str
    md5: str
    folder: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rsplit("/", 1)[-1]


def fetch_folder(archive: Archive, root: Path) -> Path:
    """Download and unpack, to ``root / archive.folder``. An archive that lies in ``root`` already is used instead.

    Raises:
        InputError: no network, a wrong checksum, no room or no permission to write, another thing of that name, a
            Python before 3.11.4. The root then holds what it held before.
    """
    if not hasattr(tarfile, "data_filter"):
        raise InputError(
            "this Python cannot unpack archives of others safely: use 3.11.4 or later; or unpack by hand: "
            f"fetch {archive.url} into {root}, and there: tar -xzf {archive.name}"
        )
    target = root / archive.folder
    if target.exists():
        raise InputError(f"{target} is there, but is not the whole data set: move it away, then download again")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=root, prefix=f".{archive.name}.", suffix=".tmp") as temporary:
            file = root / archive.name
            if file.is_file():
                _check(archive, file)
            else:
                file = _fetch(archive, Path(temporary), root)
            _unpack(archive, file, Path(temporary) / "unpacked").rename(target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def _fetch(archive: Archive, folder: Path, root: Path) -> Path:
    """The downloaded file, in ``folder``. pooch deletes one with a wrong checksum."""
    pooch.get_logger().setLevel("WARNING")
    try:
        with stage(f"download {archive.name}", unit="bytes") as shown:
            # Some servers refuse the name under which Python introduces itself.
            downloader = pooch.HTTPDownloader(
                progressbar=_Progress(shown), chunk_size=1 << 20, headers={"User-Agent": "ray-backfill"}
            )
            return Path(pooch.retrieve(archive.url, f"md5:{archive.md5}", archive.name, folder, downloader=downloader))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's; those of the network have no number
            raise
        raise InputError(
            f"cannot download {archive.url}: {' '.join(str(error).split())}. Check the network and try again; or fetch "
            f"the file in any other way, put it into {root}, and start this again: it will be checked and unpacked"
        ) from error


class _Progress:
    """What pooch tells about a download, for ``progress``."""

    def __init__(self, shown: Stage) -> None:
        self._shown = shown

    @property
    def total(self) -> int:
        return self._shown.total or 0

    @total.setter
    def total(self, size_bytes: int) -> None:
        if size_bytes:  # else the server did not say
            self._shown.expect(size_bytes)

    def update(self, size_bytes: int) -> None:
        self._shown.advance(size_bytes)

    def reset(self) -> None:
        self._shown.done = 0

    def close(self) -> None:
        """The end of the step closes it."""


def _check(archive: Archive, file: Path) -> None:
    found = pooch.file_hash(str(file), "md5")
    if found != archive.md5:
        raise InputError(
            f"{archive.name} has the md5 checksum {found} instead of {archive.md5}: it is damaged, or "
            "another file than its owners offered; nothing was unpacked. Remove it if you have it, and download again"
        )


def _unpack(archive: Archive, file: Path, into: Path) -> Path:
    """The folder that has been unpacked. The filter refuses devices, and what would leave ``into``."""
    try:
        with tarfile.open(file) as members:
            members.extractall(into, filter="data")
    except tarfile.TarError as error:
        raise InputError(f"cannot unpack {archive.name}: {error}") from error
    folder = into / archive.folder
    if not folder.is_dir():
        raise InputError(f"{archive.name} holds no folder {archive.folder}")
    return folder
