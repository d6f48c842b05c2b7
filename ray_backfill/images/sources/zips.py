"""Zip files of images, read as one tree; lists a folder tree, a zip file or a folder of zip files.

zipfile holds one Python object per member while a file is open, so unpack zip files with millions of images.

Shapes: N files; F folders that hold files themselves.
"""

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.images.sources.folders import SUFFIXES, Listing, is_hidden, list_folders, require_images, walk

# Names of splits: a zip file whose only top folder is one of these keeps it.
_SPLIT_FOLDERS = ("train", "gallery", "val", "test", "queries", "query")


@dataclass(eq=False)
class ZipListing(Listing):
    """All images of zip files, which are opened on first use.

    files: the zip files. prefixes: the dropped top folder (with "/") of each zip file. file_F: (F,) index of the zip
    file with each folder. stamps: (N,) "size:CRC-32" of each image.
    """

    files: list[str]
    prefixes: list[str]
    file_F: NDArray[np.int32]
    stamps: pa.StringArray
    _opened: dict[tuple[int, int], zipfile.ZipFile] = field(default_factory=dict, init=False, repr=False)

    def where(self, position: int) -> str:
        """The zip file and the path inside it, for messages."""
        file = self.file_F[self.folder_N[position]]
        return f"{self.files[file]}!{self.prefixes[file]}{self.name(position)}"

    def read(self, position: int) -> bytes:
        """The bytes of a file. Raises the error of the system or zipfile if it cannot be read."""
        file = int(self.file_F[self.folder_N[position]])
        # A forked process shares the parent's file position, so each process opens its own file.
        key = (os.getpid(), file)
        if key not in self._opened:
            self._opened[key] = zipfile.ZipFile(self.files[file])
        return self._opened[key].read(self.prefixes[file] + self.name(position))

    def stamp(self, position: int, name: str) -> str:
        """Size and checksum from the directory, without reading the file."""
        return self.stamps[position].as_py()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}


def list_images(root: str) -> Listing:
    """List a folder tree, a zip file, or a folder of zip files. Zip files beside images are ignored.

    Raises:
        InputError: nothing at ``root``, no images, a folder without images, an unreadable zip file, or a name that is
            not UTF-8.
    """
    path = Path(root).expanduser()
    if not root or not path.exists():
        raise InputError(f"no folder or zip file at {root!r}: check the path of the images")
    if path.is_file():
        return list_zips([path])
    zips = [each for each in path.glob("*.zip") if each.is_file() and not is_hidden(each.name)]
    if zips and not any(names for _, names in walk(path, [""])):
        return list_zips(zips)
    return list_folders(root)


def list_zips(paths: Sequence[Path]) -> Listing:
    """List zip files as one tree. A single top folder is dropped; identical folders in two files count once.

    Raises:
        InputError: see list_images; also if two files have the same folder with different images.
    """
    files, prefixes, seen = [str(path) for path in sorted(paths)], [], set[str]()
    images: dict[str, dict[str, str]] = {}
    owner: dict[str, int] = {}
    for number, file in enumerate(files):
        prefix, found = _read_directory(file)
        prefixes.append(prefix)
        seen |= found.keys()
        for folder, stamps in found.items():
            if folder not in owner and stamps:
                owner[folder], images[folder] = number, stamps
            elif not stamps.keys() <= images.get(folder, {}).keys():
                # Not a copy: skipping it would silently lose images.
                raise InputError(
                    f"class {folder!r} has other images in {file} than in {files[owner[folder]]}: "
                    "unpack both into one folder tree with one folder per class"
                )
    folders = sorted(images)
    rows = [row for folder in folders for row in sorted(images[folder].items())]
    listing = ZipListing(
        root=", ".join(files),
        folders=folders,
        folder_N=np.repeat(np.arange(len(folders), dtype=np.int32), [len(images[folder]) for folder in folders]),
        names=pa.array([name for name, _ in rows], pa.large_string()),
        files=files,
        prefixes=prefixes,
        file_F=np.array([owner[folder] for folder in folders], np.int32),
        stamps=pa.array([stamp for _, stamp in rows], pa.string()),
    )
    require_images(listing.root, listing, seen)
    return listing


def _read_directory(file: str) -> tuple[str, dict[str, dict[str, str]]]:
    """The dropped top folder, and the images of each folder with their stamps."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = [info for info in archive.infolist() if not any(map(is_hidden, info.filename.split("/")))]
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise InputError(f"cannot read zip file {file} ({error}): download or copy it again") from error
    images = {info.filename for info in members if info.filename.lower().endswith(SUFFIXES)}
    prefix = _top_folder(images)
    found: dict[str, dict[str, str]] = {}
    for info in members:
        folder, _, name = info.filename.removeprefix(prefix).rpartition("/")
        stamps = found.setdefault(folder, {})
        if info.filename in images:
            stamps[name] = f"{info.file_size}:{info.CRC:08x}"
    return prefix, found


def _top_folder(names: set[str]) -> str:
    """The single top folder of all names, with "/", if it only wraps the class folders; otherwise ""."""
    tops = {name.split("/", 1)[0] for name in names}
    top = tops.pop() if len(tops) == 1 else ""
    # If a zip file has a single class folder, its top folder is the class.
    wraps = top not in _SPLIT_FOLDERS and all(name.count("/") >= 2 for name in names)
    return f"{top}/" if top and wraps else ""
