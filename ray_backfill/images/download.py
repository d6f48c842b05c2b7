"""Downloads the archives of freely available data sets; an interrupted download never looks complete.

pooch downloads the file and verifies the checksum. Its Untar is not used: before Python 3.12 it allows members to leave
the target folder, and it takes the leftovers of a killed run as complete. A killed download leaves a hidden folder
``.<archive>.*.tmp`` in the root, which can be removed.
"""

import hashlib
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import Task, task


@dataclass(frozen=True)
class RemoteArchive:
    """A tar file on a server, with one top folder, ``folder``. ``md5``: the published checksum, in hexadecimal."""

    url: str
    md5: str
    folder: str

    @property
    def name(self) -> str:
        """The file name."""
        return self.url.rsplit("/", 1)[-1]


def fetch_folder(archive: RemoteArchive, root: Path) -> Path:
    """Download the archive and unpack it to ``root / archive.folder``. An archive that is already in ``root`` is used.

    Raises:
        InputError: no network, a wrong checksum, no space or permission to write, the target exists already, or a
            Python before 3.11.4. The root is then unchanged.
    """
    if not hasattr(tarfile, "data_filter"):
        raise InputError(
            "this Python cannot safely unpack downloaded archives: use 3.11.4 or later; or unpack by hand: "
            f"fetch {archive.url} into {root}, and there run: tar -xzf {archive.name}"
        )
    target = root / archive.folder
    if target.exists():
        raise InputError(f"{target} exists, but is not the complete data set: move it away, then download again")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=root, prefix=f".{archive.name}.", suffix=".tmp") as temporary:
            file = root / archive.name
            if file.is_file():
                _check(archive, file)
            else:
                file = _fetch(archive, Path(temporary), root)
            unpacked = _unpack(archive, file, Path(temporary) / "unpacked")
            os.sync()  # thousands of files at once: a power cut must not leave empty ones under the final name
            unpacked.rename(target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def _fetch(archive: RemoteArchive, folder: Path, root: Path) -> Path:
    """Download the file to ``folder``. pooch deletes a file with a wrong checksum."""
    import pooch  # of the extra; only a download needs it

    pooch.get_logger().setLevel("WARNING")
    try:
        with task(f"download {archive.name}", unit="bytes") as shown:
            # Some servers refuse the name under which Python introduces itself.
            downloader = pooch.HTTPDownloader(
                progressbar=_Progress(shown), chunk_size=1 << 20, headers={"User-Agent": "ray-backfill"}
            )
            return Path(pooch.retrieve(archive.url, f"md5:{archive.md5}", archive.name, folder, downloader=downloader))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # a disk error; network errors have no errno
            raise
        raise InputError(
            f"cannot download {archive.url}: {' '.join(str(error).split())}. Check the network and try again; or get "
            f"the file another way, put it into {root}, and run this again to check and unpack it"
        ) from error


class _Progress:
    """What pooch tells about a download, for ``progress``."""

    def __init__(self, shown: Task) -> None:
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


def _check(archive: RemoteArchive, file: Path) -> None:
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "md5").hexdigest()
    if found != archive.md5:
        raise InputError(
            f"{archive.name} has the md5 checksum {found} instead of {archive.md5}: it is damaged or a different "
            "file; nothing was unpacked. Remove it and download it again"
        )


def _unpack(archive: RemoteArchive, file: Path, into: Path) -> Path:
    """Unpack the archive and return its folder. The filter rejects devices and paths outside ``into``."""
    try:
        with tarfile.open(file) as members:
            members.extractall(into, filter="data")
    except tarfile.TarError as error:
        raise InputError(f"cannot unpack {archive.name}: {error}") from error
    folder = into / archive.folder
    if not folder.is_dir():
        raise InputError(f"{archive.name} has no folder {archive.folder}: remove it and download it again")
    return folder
