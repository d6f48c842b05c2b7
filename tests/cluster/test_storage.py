"""What Ray Train asks of its storage, against two servers of S3: as on pyarrow's own disk."""

import pickle
from pathlib import Path

import pytest
from pyarrow import fs

from ray_backfill.core.store_path import path_of
from ray_backfill.core.stores import Bucket
from ray_backfill.workers.storage import train_storage


def test_a_checkpoint_goes_there_and_back_as_on_a_disk(store: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    for name, content in (("a.bin", b"x" * 300_000), ("sub/b.json", b"{}"), ("empty.txt", b"")):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_bytes(content)
    seen: list[set[tuple[object, ...]]] = []
    for place in (path_of(store) / "run", tmp_path / "run"):
        root, system = pickle.loads(pickle.dumps(train_storage(place)))
        system = system or fs.LocalFileSystem()
        for number in (1, 2):
            system.create_dir(f"{root}/checkpoint_{number}")
            fs.copy_files(str(checkpoint), f"{root}/checkpoint_{number}", destination_filesystem=system)
        system.delete_dir(f"{root}/checkpoint_1")
        with system.open_output_stream(f"{root}/snapshot.json") as file:
            file.write(b"one")
        with system.open_output_stream(f"{root}/snapshot.json") as file:
            file.write(b"two")
        assert system.open_input_stream(f"{root}/snapshot.json").read() == b"two"
        assert system.get_file_info(f"{root}/checkpoint_1").type == fs.FileType.NotFound
        back = tmp_path / f"back{len(seen)}"
        back.mkdir()
        fs.copy_files(f"{root}/checkpoint_2", str(back), source_filesystem=system)
        found = system.get_file_info(fs.FileSelector(root, recursive=True))
        seen.append({
            *((info.path.removeprefix(root), info.type, info.size if info.is_file else 0) for info in found),
            *((str(path.relative_to(back)), path.read_bytes()) for path in back.rglob("*") if path.is_file()),
        })  # fmt: skip
        system.delete_file(f"{root}/snapshot.json")
        assert system.get_file_info(f"{root}/snapshot.json").type == fs.FileType.NotFound
    of_store, of_disk = seen
    assert of_store == of_disk


def test_markers_of_folders_are_no_files(store: str) -> None:
    """Consoles make an empty object for a folder, and pyarrow's clients do."""
    folder = path_of(store) / "run"
    (folder / "sub" / "a.txt").write_text("a")
    bucket = Bucket("s3", store.removeprefix("s3://"))
    import boto3

    for key in ("run/", "run/sub/", "run/other/"):
        boto3.client("s3").put_object(Bucket=bucket.name, Key=key, Body=b"")
    assert [entry.key for entry in bucket.below("run")] == ["run/sub/a.txt"]
    assert (Path(str(folder / "sub")).name, (folder / "sub" / "a.txt").read_text()) == ("sub", "a")


def test_what_is_not_there_is_said(store: str) -> None:
    root, system = train_storage(path_of(store) / "run")
    assert system is not None
    with pytest.raises(FileNotFoundError):
        system.open_input_stream(f"{root}/nothing")
