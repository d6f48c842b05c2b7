"""Image files in folder trees and zip files, as sorted columns that are read by position; the classes of folders.

Hidden files and ``__MACOSX`` folders are left out. A file takes its name and about ten bytes, not a Python object; only
zipfile holds one Python object per member while a file is open, so unpack zip files with millions of images.

Shapes: N files; F folders that hold files themselves.
"""

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import step
from ray_backfill.core.store_path import in_store, path_of
from ray_backfill.images.source import NAMES_OF, Files, Items

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
# Number of names held as Python objects at a time.
CHUNK = 65_536


@dataclass(eq=False)
class Listing(Files):
    """All images below ``root``, sorted by folder, then name.

    folders: F sorted paths below the root, separated by "/"; the root itself is "". folder_N: (N,) int32, index of each
    file's folder, ascending. names: N file names.
    """

    root: str
    folders: list[str]
    folder_N: NDArray[np.int32]
    names: pa.LargeStringArray

    def __len__(self) -> int:
        return len(self.names)

    def folder(self, position: int) -> str:
        """The folder of a file, below the root."""
        return self.folders[self.folder_N[position]]

    def name(self, position: int) -> str:
        return _joined(self.folder(position), self.names[position].as_py())

    def where(self, position: int) -> str:
        return f"{self.root}/{self.name(position)}"

    def read(self, position: int) -> bytes:
        return (path_of(self.root) / self.name(position)).read_bytes()

    def stamped(self) -> Iterator[str]:
        if self.remote and in_store(root := path_of(self.root)):
            entries = {entry.key: f"{entry.size}:{entry.mark}" for entry in root.bucket.below(root.key)}
            for name in map(self.name, range(len(self))):
                yield f"{name}\0{entries.get((root / name).key, 'missing')}\n"
            return
        for start in range(0, len(self), CHUNK):
            for position, name in enumerate(self.names[start : start + CHUNK].to_pylist(), start):
                folder = self.folder(position)
                yield f"{folder}/{name}\0{self._stamp(position, _joined(folder, name))}\n"

    def _stamp(self, position: int, name: str) -> str:
        """A text that changes with a file's content. name: the path below the root."""
        return file_stamp(f"{self.root}/{name}")


def list_folders(root: str, below: Sequence[str] | None = None) -> Listing:
    """List the images of a folder tree.

    below: the folders below the root to list, if they exist; others are not walked. None: all.

    Raises:
        InputError: no images, a folder without images, an unreadable folder, or a name that is not UTF-8.
    """
    path = path_of(root).expanduser()
    tops = [""] if below is None else [top for top in below if (path / top).is_dir()]
    batches_of: dict[str, list[pa.Array]] = {}
    with step(f"list {path}", unit="files") as bar:
        for folder, names in walk(path, tops):
            batches_of.setdefault(folder, []).append(pa.array(sorted(names), pa.large_string()))
            bar.advance(len(names))
    filled: dict[str, pa.Array] = {}
    for folder, batches in sorted(batches_of.items()):
        # Arrow sorts by UTF-8 bytes, which is also the order of characters.
        names = batches[0] if len(batches) == 1 else pa.concat_arrays(batches).sort()
        if len(names):
            filled[folder] = names
    folder_N = np.repeat(np.arange(len(filled), dtype=np.int32), list(map(len, filled.values())))
    all_names = pa.chunked_array(filled.values(), pa.large_string()).combine_chunks()
    listing = Listing(str(path), list(filled), folder_N, all_names)
    listing.remote = in_store(path)
    require_images(root, listing, set(batches_of), "" if below is None else f" (in {', '.join(below)})")
    return listing


def file_stamp(path: str) -> str:
    """Size and modification time of a file, or "missing"."""
    try:
        status = path_of(path).stat() if "://" in path else os.stat(path)  # noqa: PTH116 - a Path object would cost as much as the stat
    except OSError:
        return "missing"
    return f"{status.st_size}:{status.st_mtime_ns}"


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def is_hidden(part: str) -> bool:
    """Whether files and folders of this name are left out."""
    return (part.startswith(".") and part != ".") or part == "__MACOSX"


def walk(root: Path, tops: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields each folder with its images, at most ``CHUNK`` at a time. Follows links to folders.

    Cost: a look at each folder; in a store, a listing of all that is below the tops.
    """
    if in_store(root):
        images: dict[str, list[str]] = {}
        for key in (entry.key for top in tops for entry in root.bucket.below((root / top).key)):
            folder, _, name = key[len(root.key) :].lstrip("/").rpartition("/")
            if not any(map(is_hidden, (*folder.split("/"), name))):
                images.setdefault(folder, []).extend([name] if name.lower().endswith(SUFFIXES) else [])
        yield from images.items()
        return
    ahead = list(tops)
    while ahead:
        folder = ahead.pop()
        names: list[str] = []
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    is_folder = _is_folder(entry)
                    if is_hidden(entry.name) or not (is_folder or entry.name.lower().endswith(SUFFIXES)):
                        continue
                    if not entry.name.isascii():
                        _require_utf8(entry)
                    if is_folder:
                        place = Path(entry.path)
                        if entry.is_symlink() and place.parent.resolve().is_relative_to(place.resolve()):
                            why = "leads to a folder above it, which is an endless loop: remove the link"
                            raise InputError(f"the link {entry.path} {why}")
                        ahead.append(_joined(folder, entry.name))
                    else:
                        names.append(entry.name)
                    if len(names) == CHUNK:
                        yield folder, names
                        names = []
        except OSError as error:
            raise InputError(f"cannot read folder {error.filename}: {error.strerror}") from error
        yield folder, names


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a broken link
        return False


def _require_utf8(entry: os.DirEntry[str]) -> None:
    try:
        entry.name.encode()
    except UnicodeEncodeError as error:
        folder = os.path.dirname(entry.path)  # noqa: PTH120 - the same without a second object
        raise InputError(
            f"the name {os.fsencode(entry.name)!r} in {folder} is not UTF-8: rename it (convmv renames many files)"
        ) from error


def require_images(root: str, listing: Listing, seen: set[str], places: str = "") -> None:
    """Raises InputError if there are no images, or if a ``seen`` folder has none, not even in subfolders."""
    if not len(listing):
        expected = ", ".join(SUFFIXES[:3])
        raise InputError(f"no images in {root}{places}: expected files such as {expected} in a folder per class")
    filled = {above for folder in listing.folders for above in _ancestors(folder)}
    parents = {above for folder in seen for above in _ancestors(folder)[1:]}
    if empty := sorted(seen - filled - parents):
        more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
        named = ", ".join(map(repr, empty[:3]))
        raise InputError(f"empty class in {root}: no images in {named}{more}; add images or remove the folder")


def _ancestors(folder: str) -> list[str]:
    """The folder itself, its parent, and so on to the root, ""."""
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]


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
        """The zip file and the path inside it."""
        file = self.file_F[self.folder_N[position]]
        return f"{self.files[file]}!{self.prefixes[file]}{self.name(position)}"

    def read(self, position: int) -> bytes:
        file = int(self.file_F[self.folder_N[position]])
        # A forked process shares the parent's file position, so each process opens its own file.
        key = (os.getpid(), file)
        if key not in self._opened:
            self._opened[key] = zipfile.ZipFile(path_of(self.files[file]))
        return self._opened[key].read(self.prefixes[file] + self.name(position))

    def _stamp(self, position: int, name: str) -> str:
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
    path = path_of(root).expanduser()
    if not root or not path.exists():
        raise InputError(f"no folder or zip file at {root!r}: check the path of the images")
    if path.is_file():
        return list_zips([path])
    zips = [file for file in path.glob("*.zip") if file.is_file() and not is_hidden(file.name)]
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
        with zipfile.ZipFile(path_of(file)) as archive:
            members = [info for info in archive.infolist() if not any(map(is_hidden, info.filename.split("/")))]
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise InputError(f"cannot read zip file {file} ({error}): download or copy it again") from error
    images = {info.filename for info in members if info.filename.lower().endswith(SUFFIXES)}
    # A single top folder that only wraps the class folders is dropped. If there is one class folder, it is the class.
    tops = {name.split("/", 1)[0] for name in images}
    top = tops.pop() if len(tops) == 1 else ""
    is_split = any(top in known for known in NAMES_OF.values())
    wraps = top and not is_split and all(name.count("/") >= 2 for name in images)
    prefix = f"{top}/" if wraps else ""
    stamps_of: dict[str, dict[str, str]] = {}
    for info in members:
        folder, _, name = info.filename.removeprefix(prefix).rpartition("/")
        stamps = stamps_of.setdefault(folder, {})
        if info.filename in images:
            stamps[name] = f"{info.file_size}:{info.CRC:08x}"
    return prefix, stamps_of


def number_classes(classes_F: list[Any]) -> tuple[list[Any], NDArray[np.int64]]:
    """The distinct classes, sorted, and the (F,) int64 index of each given class among them.

    With one class per folder, ``numbers_F[listing.folder_N]`` are the labels of the files.
    """
    names = sorted(set(classes_F))
    number = {name: i for i, name in enumerate(names)}
    return names, np.array([number[name] for name in classes_F], np.int64)


def classes_below(listing: Listing, top: str) -> dict[int, str]:
    """Number of each folder below ``top`` ("" for the root) -> class, its path below ``top``; "" for ``top`` itself."""
    start = f"{top}/" if top else ""
    return {
        number: folder.removeprefix(start) if folder != top else ""
        for number, folder in enumerate(listing.folders)
        if folder == top or folder.startswith(start)
    }


def class_folders(listing: Listing, top_of: Mapping[str, str], dataset: str = "") -> tuple[list[str], dict[str, Items]]:
    """The sorted names of all classes, and the images of each split: of the class folders below its top folder.

    top_of: split -> top folder, "" for the root. dataset: for messages. An id is the image's position in the listing, a
    label the rank of its class.

    Raises:
        InputError: an image is in no class folder.
    """
    found = {split: classes_below(listing, top) for split, top in top_of.items()}
    for folder, name in (named for classes in found.values() for named in classes.items()):
        if not name:
            where = listing.where(int(np.searchsorted(listing.folder_N, folder)))
            prefix = f"{dataset}: " if dataset else ""
            raise InputError(f"{prefix}{where} is in no class folder: move it into one, or remove it")
    names, numbers = number_classes([name for classes in found.values() for name in classes.values()])
    label_F = np.full(len(listing.folders), -1, np.int64)
    label_F[[folder for classes in found.values() for folder in classes]] = numbers
    items = Items(np.arange(len(listing)), label_F[listing.folder_N])
    inside = {split: np.isin(np.arange(len(label_F)), list(classes)) for split, classes in found.items()}
    return names, {split: items.take(np.flatnonzero(in_F[listing.folder_N])) for split, in_F in inside.items()}
