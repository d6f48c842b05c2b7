"""Image files in a folder tree, or in zip files of one, as one sorted list that can be read by position.

Hidden files and macOS's own (``__MACOSX``) are not there. A listing can be pickled; zip files are opened
when first read.
"""

import hashlib
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ray_backfill.errors import InputError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
# Top folders with a meaning: a zip file that holds nothing but one of these keeps it.
SPLIT_FOLDERS = ("train", "gallery", "val", "test", "queries", "query")


class ImageFile(NamedTuple):
    """``folder``: path of its folder below the root, "/" between the parts; ``member``: its path in the container."""

    folder: str
    name: str
    container: int
    member: str
    stamp: str  # of a zip member: size and checksum; of a file: empty, since asking costs a disk access each


@dataclass
class Listing:
    """All images below a root, sorted by folder, then name. ``containers``: the root folder, or the zip files."""

    containers: list[str]
    zipped: bool
    files: list[ImageFile]
    _handles: dict[tuple[int, int], zipfile.ZipFile] = field(default_factory=dict, repr=False, compare=False)

    def read(self, position: int) -> bytes:
        """The bytes of one file. Raises what the system or zipfile raises when it cannot be read."""
        file = self.files[position]
        if not self.zipped:
            return (Path(self.containers[0]) / file.member).read_bytes()
        # A forked process shares the parent's file position, so each process opens its own handle.
        key = (os.getpid(), file.container)
        if key not in self._handles:
            self._handles[key] = zipfile.ZipFile(self.containers[file.container])
        return self._handles[key].read(file.member)

    def where(self, position: int) -> str:
        """The path of one file, for messages."""
        file = self.files[position]
        return f"{self.containers[file.container]}{'!' if self.zipped else '/'}{file.member}"

    def digest(self) -> str:
        """Changes with any name, and with the size or the checksum (in a folder: the time) of any file."""
        hasher = hashlib.sha256()
        for file in self.files:
            stamp = file.stamp or _file_stamp(Path(self.containers[0]) / file.member)
            hasher.update(f"{file.folder}/{file.name}\0{stamp}\n".encode("utf-8", "surrogateescape"))
        return hasher.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": {}}


def list_images(root: str) -> Listing:
    """List a folder tree, one zip file, or a folder of zip files.

    Raises:
        InputError: nothing there, no images, a folder without images, an unreadable zip file.
    """
    path = Path(root).expanduser()
    if not root or not path.exists():
        raise InputError(f"no folder or zip file at {root!r}: check the path of the images")
    if path.is_file():
        return list_zips([path])
    listing, empty = _list_tree(path)
    zips = sorted(p for p in path.glob("*.zip") if p.is_file() and not _hidden(p.name))
    if not listing.files and zips:
        return list_zips(zips)
    _refuse_empty(root, listing.files, empty)
    return listing


def list_zips(paths: Sequence[Path]) -> Listing:
    """List zip files as one tree. A zip file's own single top folder is dropped; a folder found twice counts once.

    Raises:
        InputError: see list_images; and a folder that stands in two of the files with different images.
    """
    files: list[ImageFile] = []
    empty: set[str] = set()
    owners: dict[str, tuple[int, set[str]]] = {}
    paths = sorted(paths)
    for container, path in enumerate(paths):
        own, own_empty = _list_zip(path, container)
        empty |= own_empty
        by_folder: dict[str, list[ImageFile]] = {}
        for file in own:
            by_folder.setdefault(file.folder, []).append(file)
        for folder, members in by_folder.items():
            names = {file.name for file in members}
            first, known = owners.setdefault(folder, (container, names))
            if first == container:
                files += members
            elif not names <= known:
                # Not a copy: leaving it out would lose images without a word.
                raise InputError(
                    f"class {folder!r} has other images in {path} than in {paths[first]}: "
                    "unpack both into one folder tree, each class in a folder of its own"
                )
    _refuse_empty(", ".join(map(str, paths)), files, empty - set(owners))
    return Listing([str(path) for path in paths], True, sorted(files))


def _hidden(part: str) -> bool:
    return (part.startswith(".") and part != ".") or part == "__MACOSX"


def _list_tree(root: Path) -> tuple[Listing, set[str]]:
    def refuse(error: OSError) -> None:
        raise InputError(f"cannot read folder {error.filename}: {error.strerror}")

    files, folders = [], set()
    for here, children, names in os.walk(root, onerror=refuse, followlinks=True):
        children[:] = [child for child in children if not _hidden(child)]
        folder = "" if Path(here) == root else Path(here).relative_to(root).as_posix()
        folders.add(folder)
        for name in names:
            if name.lower().endswith(SUFFIXES) and not _hidden(name):
                files.append(ImageFile(folder, name, 0, f"{folder}/{name}" if folder else name, ""))
    return Listing([str(root)], False, sorted(files)), _empty_folders(folders, files)


def _list_zip(path: Path, container: int) -> tuple[list[ImageFile], set[str]]:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = [info for info in archive.infolist() if not any(map(_hidden, info.filename.split("/")))]
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise InputError(f"cannot read zip file {path} ({error}): download or copy it again") from error
    images = [info for info in infos if not info.is_dir() and info.filename.lower().endswith(SUFFIXES)]
    drop = _top_folder([info.filename for info in images])
    files = []
    for info in images:
        folder, _, name = info.filename.removeprefix(drop).rpartition("/")
        files.append(ImageFile(folder, name, container, info.filename, f"{info.file_size}:{info.CRC:08x}"))
    folders = {info.filename.removeprefix(drop).rpartition("/")[0] for info in infos}
    return files, _empty_folders(folders, files)


def _top_folder(names: list[str]) -> str:
    """The one top folder that all names share, with its "/", if it is only a wrapping; else the empty string."""
    tops = {name.split("/", 1)[0] for name in names}
    top = tops.pop() if len(tops) == 1 else ""
    # In a zip file of one class folder the top folder is the class.
    wraps = top not in SPLIT_FOLDERS and all(name.count("/") >= 2 for name in names)
    return f"{top}/" if top and wraps else ""


def _empty_folders(folders: set[str], files: Iterable[ImageFile]) -> set[str]:
    """The innermost folders that hold no image, nor does anything below them."""
    filled = {above for file in files for above in _ancestors(file.folder)}
    parents = {above for folder in folders for above in _ancestors(folder)[1:]}
    return folders - filled - parents - {""}


def _ancestors(folder: str) -> list[str]:
    """The folder itself, its parent, and so on to the root, ""."""
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]


def _refuse_empty(root: str, files: list[ImageFile], empty: set[str]) -> None:
    if not files:
        raise InputError(f"no images in {root}: expected files such as {', '.join(SUFFIXES[:3])} in a folder per class")
    if empty:
        more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
        named = ", ".join(map(repr, sorted(empty)[:3]))
        raise InputError(f"an empty class in {root}: no images in {named}{more}; add images or remove the folder")


def _file_stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "missing"
    return f"{status.st_size}:{status.st_mtime_ns}"
