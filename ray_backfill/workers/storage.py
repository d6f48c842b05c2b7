"""Ray Train's checkpoints in object storage, by the requests and with the credentials of all other files.

Its own client, pyarrow's, looks for credentials and the store's address in fewer places, retries less, and leaves an
object for each folder.
"""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec import AbstractFileSystem

from ray_backfill.core.stages import remove_folder
from ray_backfill.core.store_path import StorePath, in_store

if TYPE_CHECKING:
    from pyarrow import fs


def train_storage(folder: Path) -> "tuple[str, fs.FileSystem | None]":
    """What ``RunConfig`` takes as ``storage_path`` and ``storage_filesystem`` for a folder."""
    if not in_store(folder):
        return str(folder.absolute()), None
    from pyarrow import fs

    system = fs.PyFileSystem(fs.FSSpecHandler(_StoreSystem(folder.bucket.scheme)))
    return f"{folder.bucket.name}/{folder.key}", system


class _StoreSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files of a store, by ``bucket/key``. It can be sent to workers, which use their own credentials."""

    cachable = False

    def __init__(self, scheme: str) -> None:
        super().__init__()
        self.scheme = self.protocol = scheme

    def at(self, path: str) -> StorePath:
        return StorePath(f"{self.scheme}://{path}")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        if (entry := self.at(path).entry()) is not None:
            return {"name": path, "type": "file", "size": entry.size}
        if self.at(path).is_dir():
            return {"name": path, "type": "directory", "size": 0}
        raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        below = [f"{path.rstrip('/')}/{child.name}" for child in self.at(path).iterdir()]
        return [self.info(name) for name in below] if detail else below

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """A store has no empty folders."""

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        if recursive:
            remove_folder(self.at(path))
        else:
            self.at(path).unlink(missing_ok=True)

    def open(self, path: str, mode: str = "rb", *_: Any, **__: Any) -> Any:
        return self.at(path).open("rb") if mode == "rb" else _Sent(self.at(path))


class _Sent(io.FileIO):
    """A local file that is put into the store when it is closed."""

    def __init__(self, to: StorePath) -> None:
        self.to, self.half = to, to.bucket.temporary(to.key)
        super().__init__(self.half, "w")

    def close(self) -> None:
        if not self.closed:
            super().close()
            try:
                self.to.bucket.put(self.to.key, self.half)
            finally:
                self.half.unlink()
