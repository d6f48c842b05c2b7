"""Zip files of images, read as one tree; and what a user may give: a folder tree, a zip file, a folder of zip files.

A zip file's directory is held by zipfile as one Python object a member while it is open: unpack zip files of millions.

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

from ray_backfill.errors import InputError
from ray_backfill.images.folders import SUFFIXES, Listing, is_hidden, list_folders, require_images, walk

# Top folders with a meaning: a zip file that holds nothing but one of these keeps it.
_SPLIT_FOLDERS = ("train", "gallery", "val", "test", "queries", "query")


@dataclass(eq=False)
class ZipListing(Listing):
    """All images of zip files, which are opened when they are first read.

    files: the zip files; prefixes: of each, the top folder (with its "/") left out. file_F: (F,) which of them holds a
    folder. stamps: (N,) "size:CRC-32" of each image.
    """

    files: list[str]
    prefixes: list[str]
    file_F: NDArray[np.int32]
    stamps: pa.StringArray
    _opened: dict[tuple[int, int], zipfile.ZipFile] = field(default_factory=dict, init=False, repr=False)

    def where(self, position: int) -> str:
        """The zip file and the path in it, for messages."""
        file = self.file_F[self.folder_N[position]]
        return f"{self.files[file]}!{self.prefixes[file]}{self.name(position)}"

    def read(self, position: int) -> bytes:
        """The bytes of one file. Raises what the system or zipfile raises when it cannot be read."""
        file = int(self.file_F[self.folder_N[position]])
        # A forked process shares the parent's file position, so each process opens its own.
        key = (os.getpid(), file)
        if key not in self._opened:
            self._opened[key] = zipfile.ZipFile(self.files[file])
        return self._opened[key].read(self.prefixes[file] + self.name(position))

    def stamp(self, position: int, name: str) -> str:
        """Size and checksum: no file is read for it."""
        return self.stamps[position].as_py()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}


def list_images(root: str) -> Listing:
    """List a folder tree, one zip file, or a folder of zip files. Zip files beside images are left alone.

    Raises:
        InputError: nothing there, no images, a folder without images, an unreadable zip file, a name that is no UTF-8.
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
    """List zip files as one tree. A zip file's own single top folder is dropped; a folder found twice counts once.

    Raises:
        InputError: see list_images; and a folder that stands in two of the files with different images.
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
                # Not a copy: leaving it out would lose images without a word.
                raise InputError(
                    f"class {folder!r} has other images in {file} than in {files[owner[folder]]}: "
                    "unpack both into one folder tree, each class in a folder of its own"
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
    """The top folder that is left out, and of each folder that is there the images with their stamps."""
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
    """The one top folder that all names share, with its "/", if it is only a wrapping; else the empty string."""
    tops = {name.split("/", 1)[0] for name in names}
    top = tops.pop() if len(tops) == 1 else ""
    # In a zip file of one class folder the top folder is the class.
    wraps = top not in _SPLIT_FOLDERS and all(name.count("/") >= 2 for name in names)
    return f"{top}/" if top and wraps else ""
