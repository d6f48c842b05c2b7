"""Durable file writes, and stages: folders that record whether their work is finished.

A stage is computed once, kept in a folder, and reused or continued by the next run. Its ``manifest.json`` holds the
settings. The manifest is written before the work starts, so that an unfinished folder can be recognised, and marked as
finished once all files are in place; it then lists them with their sizes. What a power cut or a failing disk has
damaged is deleted when the stage begins again, and the stage makes only that once more.
"""

import errno
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ray_backfill.core.errors import REMEDIES, InputError
from ray_backfill.core.progress import say
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.secrets import cleaned
from ray_backfill.core.store_path import StorePath, in_store
from ray_backfill.core.stores import NotWritableError

_MANIFEST = "manifest.json"
# The key once more, written once. It tells whose a folder is if the manifest is damaged.
_KEY = ".key.json"
# In a store: says that a folder which is to replace another is whole.
COMPLETE = ".complete"
# Files of which ``is_whole`` knows more than their size.
_KINDS = (".parquet", ".safetensors", ".json")
PathT = TypeVar("PathT", bound=Path)


class UnreadableError(InputError):
    """A file is missing or damaged. A store that does not answer raises another InputError: its files may be whole."""


class OtherSettingsError(InputError):
    """A folder belongs to a stage with other settings."""


def sync(path: Path) -> None:
    """Return when the bytes of a file, or the names in a folder, would survive a power cut."""
    if in_store(path):  # a PUT that has succeeded survives
        return
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks keep a folder's names in another way
            raise
    finally:
        os.close(opened)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, so that a power cut does not lose them, as ``sync``."""
    if not in_store(folder) and not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all: ``write`` fills a temporary file beside ``path``, which is then renamed.

    Readers never see a partial file, and a power cut leaves the old file or the new one. When this returns, the new one
    is on the disk, or in the store. Cost: three waits for the disk, or one PUT; the file stays as a local copy.

    Raises:
        InputError: The disk is full, or the file cannot be written (NotWritableError).
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")  # unique even if nodes share the disk
    try:
        if in_store(path):
            temporary = path.bucket.temporary(path.key)
            write(temporary)
            path.bucket.keep(path.bucket.put(path.key, temporary), temporary)
            return
        make_folder(path.parent)
        write(temporary)
        sync(temporary)  # a name may reach the disk before the bytes
        temporary.replace(path)
        sync(path.parent)
    except Exception as error:
        # The error of safetensors has the number in its text.
        named = re.search(r"\(os error (\d+)\)", str(error))
        number = error.errno if isinstance(error, OSError) else int(named[1]) if named else None
        why = os.strerror(number or 0).lower()
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(f"disk full: cannot write {path} ({error}); {REMEDIES[errno.ENOSPC]}") from error
        if number in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise NotWritableError(f"cannot write {path}: {why}; make its folder writable") from error
        if number in REMEDIES:
            raise InputError(f"cannot write {path}: {why}; {REMEDIES[number]}") from error
        raise
    finally:
        with suppress(OSError):  # of a folder that cannot be read
            temporary.unlink()


@contextmanager
def replaced_whole(folder: Path, ours: Collection[str]) -> Iterator[Path]:
    """Yield an empty folder, which takes the place of ``folder`` at the end of the block.

    A reader finds the old files or the new ones; so does the next run after a crash, which calls ``settle``. If the
    block fails or the process dies in it, the old folder stays as it is. The block writes with ``write_whole``.

    ours: names of the files that we write. Other files in the old folder are moved to the new one.
    """
    settle(folder, ours)
    new, _ = _beside(folder)
    try:
        make_folder(new)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise NotWritableError(f"cannot write {folder}: {why}; make {folder.parent} writable") from error
    try:
        yield new
    except BaseException:
        with suppress(OSError, InputError):  # of a store that fails
            remove_folder(new)
        raise
    if in_store(new):
        (new / COMPLETE).write_text("")
    else:
        put_in_place(new, folder)
    settle(folder, ours)


def put_in_place(new: Path, folder: Path) -> None:
    """Rename ``new``, whose files are on the disk, to ``folder``; what is there stays beside it until ``settle``.

    In a store, which renames no folders, ``new`` is marked as complete, and then copied. After a crash in between, the
    next call completes that.
    """
    _, old = _beside(folder)
    if in_store(folder) and in_store(new):
        (new / COMPLETE).write_text("")
        _settle_in_store(new, folder, None)
        return
    if folder.exists():
        folder.rename(old)
        sync(folder.parent)
    new.rename(folder)
    sync(folder.parent)


def complete(new: Path, folder: Path) -> None:
    """Complete what a killed process left of ``put_in_place`` in a store."""
    if in_store(new) and in_store(folder) and (new / COMPLETE).is_file():
        _settle_in_store(new, folder, None)


def settle(folder: Path, ours: Collection[str]) -> None:
    """Complete or undo what a killed process left of ``replaced_whole``."""
    if in_store(folder):
        _settle_in_store(_beside(folder)[0], folder, ours)
        return
    new, old = _beside(folder)
    if not folder.exists() and old.exists():  # it ended between the two renames: the new folder is complete
        (new if new.exists() else old).rename(folder)
        sync(folder.parent)
    if new.exists():
        shutil.rmtree(new)
    if old.exists():
        for path in old.iterdir():
            if path.name not in ours and not path.name.startswith(".") and not (folder / path.name).exists():
                path.rename(folder / path.name)
        sync(folder)
        shutil.rmtree(old)


def _settle_in_store(new: StorePath, folder: StorePath, ours: Collection[str] | None) -> None:
    """As ``settle``: copies a complete ``new``, or deletes an incomplete one. ours: None: all.

    The old manifest goes first and the new one comes last, so that no reader takes a mixture for a finished folder.
    """
    there, complete = new.sizes(), new / COMPLETE
    if complete in there:
        names = [path.parts[len(new.parts) :] for path in there if path != complete]
        manifests = [name for name in names if name[-1].endswith(_MANIFEST)]
        new.bucket.delete(*(folder.joinpath(*name).key for name in manifests))
        for name in sorted(names, key=lambda name: name in manifests):
            new.bucket.copy(new.joinpath(*name).key, folder.joinpath(*name).key)
        for path in folder.sizes():
            name = path.parts[len(folder.parts) :]
            if name not in names and (ours is None or name[0] in ours):
                path.unlink(missing_ok=True)
    keys = sorted((path.key for path in there), key=lambda key: key != complete.key)
    new.bucket.delete(*keys)  # the mark first: what is left is not complete


def remove_folder(folder: Path) -> None:
    """Delete a folder and all that is in it, if it is there. In a store, its manifest first: nothing refers to it."""
    if in_store(folder):
        keys = sorted((path.key for path in folder.sizes()), key=lambda key: not key.endswith(f"/{_MANIFEST}"))
        folder.bucket.delete(*keys)
        return
    shutil.rmtree(folder, ignore_errors=True)


def _beside(folder: PathT) -> tuple[PathT, PathT]:
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")


def remove_halves(folder: Path) -> None:
    """Delete the temporary files that killed processes left in ``folder`` and its part folders."""
    for half in (*folder.glob(".*.tmp"), *folder.glob("*/.*.tmp")):
        half.unlink()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, without secrets."""
    text = json.dumps(cleaned(dict(value)), indent=2, ensure_ascii=False) + "\n"
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, without secrets: earlier versions wrote them.

    Raises:
        UnreadableError: The file is missing or holds anything else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except InputError:  # of a store that does not answer
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableError(f"{path} must hold a JSON object")
    return dict(cleaned(value))


def begin_stage(folder: Path, key: RunKey, overwrite: bool = False) -> bool:
    """Begin ``folder`` for the run with this key. Return True if that run is already finished there.

    Files that are damaged are deleted and named in one line; the run makes them again, and keeps all others.
    overwrite: delete the files of another run.

    Raises:
        InputError: The folder belongs to another run (OtherSettingsError), or holds other files.
    """
    try:
        if look_at_stage(folder, key):
            return True
    except OtherSettingsError:
        if not overwrite:
            raise
        _clear_stage(folder)
    manifest = manifest_of(folder) if (folder / _MANIFEST).exists() else {}
    if damaged := damaged_files(folder, manifest):
        first = damaged[0].relative_to(folder)
        others = f" and {len(damaged) - 1:,} others" if len(damaged) > 1 else ""
        say(f"{folder}: made again because damaged or missing: {first}{others}")
        for file in damaged:
            file.unlink(missing_ok=True)
    facts = manifest if manifest.get("finished") else {}  # some of a damaged stage still hold
    write_json(folder / _MANIFEST, facts | key.recorded() | {"finished": False})
    (folder / _KEY).write_text(json.dumps(key.recorded()), encoding="utf-8")
    return False


def look_at_stage(folder: Path, key: RunKey) -> bool:
    """Return or raise what ``begin_stage`` would, without a change to the folder."""
    if (folder / _MANIFEST).exists():
        manifest = manifest_of(folder)
        if difference := key.difference(manifest):
            raise other_settings(folder, difference)
        return bool(manifest.get("finished")) and not damaged_files(folder, manifest)
    refuse_other_files(folder)
    return False


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of a stage. If it is damaged: the key, as if the stage had just begun.

    Raises:
        OtherSettingsError: Both are damaged.
    """
    try:
        return read_json(folder / _MANIFEST)
    except UnreadableError as error:
        try:
            return read_json(folder / _KEY) | {"finished": False}
        except UnreadableError:
            remedy = f"give --overwrite to make {folder} again, or choose another --out"
            raise OtherSettingsError(f"{error}; {remedy}") from error


def is_whole(file: Path) -> bool:
    """Whether a file is there from its first to its last byte, as far as its kind tells: Parquet, safetensors or JSON.

    Of other kinds it must not be empty. Bytes in the middle are not read: pages of Parquet have checksums of their own.
    Cost: opens the file. In a store all objects are whole, and one request tells whether this is there and not empty.
    """
    try:
        size = file.stat().st_size
        if in_store(file):
            return size > 0
        with file.open("rb") as opened:
            if file.suffix == ".parquet":
                first = opened.read(4)
                opened.seek(-4, os.SEEK_END)
                return size > 8 and first == opened.read() == b"PAR1"
            if file.suffix == ".safetensors":
                header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
                of_arrays = [array["data_offsets"][1] for name, array in header.items() if name != "__metadata__"]
                return size == opened.tell() + max(of_arrays, default=0)
            if file.suffix == ".json":
                json.loads(opened.read())
        return size > 0
    except InputError:  # of a store that does not answer
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError):
        return False


def damaged_files(folder: Path, manifest: Mapping[str, Any]) -> list[Path]:
    """The damaged files of a stage: of a finished one, those that its manifest lists with another size or that are not
    whole; of an unfinished one, all that are not whole.
    """
    if in_store(folder):
        sizes = folder.sizes()
        named = {folder / name: size for name, size in manifest.get("files", {}).items()}
        expected = named if manifest.get("finished") else {f: size for f, size in sizes.items() if f.suffix in _KINDS}
        return [file for file, size in expected.items() if sizes.get(file, 0) != size or not size]
    if manifest.get("finished"):
        listed = {folder / name: size for name, size in manifest.get("files", {}).items()}
        return [file for file, size in listed.items() if not is_whole(file) or file.stat().st_size != size]
    written = sorted([*folder.glob("*.*"), *folder.glob("*/*.*")])
    ours = [file for file in written if file.suffix in _KINDS and file.name not in (_MANIFEST, _KEY)]
    return [file for file in ours if file.is_file() and not is_whole(file)]


def refuse_other_files(folder: Path) -> None:
    """Raises InputError if the folder holds files, but no manifest."""
    if folder.is_dir() and any(not p.name.startswith(".") for p in folder.iterdir()):
        raise InputError(f"{folder} holds other files (it has no manifest.json); choose another --out")


def other_settings(folder: Path, difference: str) -> OtherSettingsError:
    """The error for a folder of another run. difference: as ``RunKey.difference`` says it."""
    return OtherSettingsError(
        f"{folder} belongs to a run with other settings ({difference}); give --overwrite to replace it, or choose "
        "another --out"
    )


def _clear_stage(folder: Path) -> None:
    """Delete the files of a stage. The manifest stays, so that the folder is still known as ours after a crash."""
    write_json(folder / _MANIFEST, {"finished": False})
    for path in folder.iterdir():
        if path.name == _MANIFEST:
            continue
        if path.is_dir() and not path.is_symlink():
            remove_folder(path)
        else:
            path.unlink()
    sync(folder)  # or files of the other run would come back


def note_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Add measured facts to the manifest of a stage that has begun."""
    write_json(folder / _MANIFEST, manifest_of(folder) | dict(facts))


def finish_stage(folder: Path, facts: Mapping[str, Any] | None = None) -> None:
    """Mark a stage as finished and add ``facts`` and the list of its files to its manifest.

    Nothing else makes a stage count as complete, and all its files are on the disk before.
    """
    if in_store(folder):
        below = {file.parts[len(folder.parts) :]: size for file, size in folder.sizes().items()}
        files = {"/".join(name): size for name, size in below.items() if len(name) < 3 and not _hidden(name)}
    else:
        written = [*folder.glob("[!.]*"), *folder.glob("[!.]*/[!.]*")]
        files = {str(file.relative_to(folder)): file.stat().st_size for file in sorted(written) if file.is_file()}
    files.pop(_MANIFEST, None)
    note_facts(folder, dict(facts or {}) | {"files": files, "finished": True})


def _hidden(name: Collection[str]) -> bool:
    return any(part.startswith(".") for part in name)


def is_finished(folder: Path) -> bool:
    """Return whether ``folder`` holds a finished stage, with any settings."""
    try:
        manifest = read_json(folder / _MANIFEST)
        return bool(manifest.get("finished")) and not damaged_files(folder, manifest)
    except UnreadableError:
        return False


def timed(folder: Path, stage: Callable[[], Path]) -> Path:
    """Run a stage and record its duration, unless it was already finished."""
    path, started = folder / "manifest.json", time.perf_counter()
    before = read_json(path) if is_finished(folder) else None
    stage()
    if before is None or read_json(path) != before:  # finished earlier, but with other settings
        note_facts(folder, {"seconds": round(time.perf_counter() - started, 2)})
    return folder
