"""Image files inside tar archives, read where they are: nothing is unpacked.

The members of an archive are listed once, which takes a seek for each, and kept in the user's cache folder under the
archive's name, size and time. If a published checksum lies beside it (``md5.NAME.txt``), it is compared then. An
archive that is damaged, or another one than published, does not end a run: its images are left out and listed, and all
others are used.

Shapes: N files; A archives; M members of an archive.
"""

import hashlib
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from platformdirs import user_cache_dir

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say, task
from ray_backfill.core.stages import write_whole
from ray_backfill.images.listing import CHUNK, file_stamp
from ray_backfill.images.paths import Paths
from ray_backfill.images.source import Files

# Not in an archive, and in none although their folder has some.
_LOOSE, _NOWHERE = -1, -2
_THREADS = 4
# Archives whose problem this process has told.
_TOLD: set[Path] = set()


@dataclass(frozen=True)
class Archive:
    """members: name, offset and size of each file. problem: what is wrong, as in "ends too early"; "" if nothing.

    is_usable: whether the members may be read; not if it is another archive than published.
    """

    path: Path
    members: pa.Table
    problem: str = ""
    is_usable: bool = True


@dataclass
class ArchivedFiles(Files):
    """Files of which some are members of archives, by the names of their files, and all others have paths.

    paths: N. archive_N: the archive of each, or ``_LOOSE`` or ``_NOWHERE``. offset_N, size_N: in it.
    """

    paths: Paths
    archives: Sequence[Archive]
    archive_N: NDArray[np.int32]
    offset_N: NDArray[np.int64]
    size_N: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, position: int) -> str:
        return self.paths.name(position)

    def where(self, position: int) -> str:
        at = int(self.archive_N[position])
        return f"{self.archives[at].path}: {self.name(position)}" if at >= 0 else self.paths.where(position)

    def read(self, position: int) -> bytes:
        at, size = int(self.archive_N[position]), int(self.size_N[position])
        if at == _LOOSE:
            return self.paths.read(position)
        if at == _NOWHERE:
            raise FileNotFoundError("no archive of its folder has it")
        archive = self.archives[at]
        if not archive.is_usable:
            raise OSError(f"the archive {archive.problem}")
        with archive.path.open("rb") as file:
            file.seek(int(self.offset_N[position]))
            content = file.read(size)
        if len(content) < size:
            raise OSError("the archive ends within it")
        return content

    def stamped(self) -> Iterator[str]:
        stamps = [f"{archive.path.name}\0{file_stamp(str(archive.path))}" for archive in self.archives]
        of_loose = self.paths.stamped()
        for start in range(0, len(self), CHUNK):
            names = self.paths.paths[start : start + CHUNK].to_pylist()
            for position, name in enumerate(names, start):
                loose, at = next(of_loose) if _LOOSE in self.archive_N else "", int(self.archive_N[position])
                own = f"{stamps[at]}\0{self.offset_N[position]}" if at >= 0 else "nowhere"
                yield loose if at == _LOOSE else f"{name}\0{own}\n"


def with_archives(paths: Paths, folders: Sequence[Path], folder_N: NDArray[np.integer]) -> Files:
    """The files at these paths; those of a folder that holds tar archives are their members of the same file name.

    folders: local ones. folder_N: (N,) index of the folder of each path. Cost: the first time, a seek for each member,
    and reading all archives that have a checksum.

    Raises:
        InputError: No archive of a folder can be read.
    """
    of_folder = [sorted(folder.glob("*.tar")) for folder in folders]
    if not any(of_folder):
        return paths
    paths_of_archives = [archive for own in of_folder for archive in own]
    read, archives = partial(_read, Path(user_cache_dir("ray_backfill")) / "archives"), list[Archive]()
    with task("list archives", len(paths_of_archives), "archives") as bar, ThreadPoolExecutor(_THREADS) as pool:
        for archive in pool.map(read, paths_of_archives):
            archives.append(archive)
            bar.advance()
    for archive in archives:
        if archive.problem and archive.path not in _TOLD:
            _TOLD.add(archive.path)
            say(f"{archive.path} {archive.problem}")
    archive_N = np.full(len(paths), _LOOSE, np.int32)
    offset_N, size_N = np.zeros((2, len(paths)), np.int64)
    file_names = pc.replace_substring_regex(paths.paths, "^.*/", "")
    first = 0
    for folder, own in enumerate(of_folder):
        tables = [
            archive.members.append_column("archive", pa.array(np.full(len(archive.members), first + i, np.int32)))
            for i, archive in enumerate(archives[first : first + len(own)])
        ]
        first += len(own)
        if not own:
            continue
        members = pa.concat_tables(tables)
        if not len(members):
            first_problem = archives[first - len(own)].problem
            raise InputError(f"no archive of {len(own)} in {folders[folder]} can be read; the first {first_problem}")
        rows = np.flatnonzero(folder_N == folder)
        at = np.asarray(pc.index_in(file_names.take(pa.array(rows)), value_set=members["name"]).fill_null(-1))
        archive_N[rows] = np.where(at < 0, _NOWHERE, np.asarray(members["archive"])[at])
        offset_N[rows], size_N[rows] = (np.where(at < 0, 0, np.asarray(members[c])[at]) for c in ("offset", "size"))
    return ArchivedFiles(paths, archives, archive_N, offset_N, size_N)


def _read(cache: Path, path: Path) -> Archive:
    """The members of an archive, from the cache if it has them."""
    key = hashlib.sha256(f"{path}\0{file_stamp(str(path))}\0{_published(path)}".encode()).hexdigest()[:32]
    kept = cache / f"{key}.parquet"
    try:
        table = pq.read_table(kept)
    except (OSError, pa.ArrowInvalid):
        table = _listed(path)
        try:
            cache.mkdir(parents=True, exist_ok=True)
            write_whole(kept, lambda temporary: pq.write_table(table, temporary))
        except OSError:
            pass  # it is listed again the next time
    facts = table.schema.metadata
    return Archive(path, table.replace_schema_metadata(), facts[b"problem"].decode(), facts[b"usable"] == b"yes")


def _listed(path: Path) -> pa.Table:
    names, offsets, sizes, problem = [], [], [], ""
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                file = member.name.rpartition("/")[2]
                if member.isreg() and not member.issparse() and not file.startswith("."):
                    names.append(file)
                    offsets.append(member.offset_data)
                    sizes.append(member.size)
            problem = why_no_end(path, tar.offset)
    except (OSError, tarfile.TarError) as error:
        problem = f"cannot be read as a tar file without compression: {error}"
    is_usable, published = True, _published(path)
    if published:
        with path.open("rb") as file_to_check:
            md5 = hashlib.file_digest(file_to_check, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
        if md5 != published:
            problem, is_usable = f"has the md5 {md5}, and {published} is published; fetch it again", False
    table = pa.table({"name": pa.array(names, pa.string()), "offset": pa.array(offsets, pa.int64()),
                      "size": pa.array(sizes, pa.int64())})  # fmt: skip
    return table.replace_schema_metadata({"problem": problem, "usable": "yes" if is_usable else "no"})


def why_no_end(path: Path, end: int) -> str:
    """Why an archive does not end at this byte, which Python's library passes over; "" if it does."""
    with path.open("rb") as file:
        file.seek(end)
        rest = file.read(tarfile.BLOCKSIZE)
        if len(rest) < tarfile.BLOCKSIZE:
            return "ends too early; fetch it again"
        while rest:
            if any(rest):
                return f"is damaged at byte {end:,}, or holds several archives; fetch or pack it again"
            rest = file.read(1 << 20)
    return ""


def _published(path: Path) -> str:
    """The md5 beside an archive, in hexadecimal, as data sets publish it; "" if there is none."""
    name = f"md5.{path.stem}.txt"
    for file in (path.parent / name, path.parents[1] / "md5sum" / path.parent.name / name):
        if file.is_file():
            return (file.read_text(encoding="utf-8", errors="replace").split() or [""])[0].lower()
    return ""
