"""Secrets of the command line are in nothing that is written, printed or listed: every command, every form, any end."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import psutil
import pyarrow.parquet as pq
import pytest

import ray_backfill as rb
from ray_backfill.core.errors import InputError
from ray_backfill.core.run_lock import LOCK
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.secrets import cleaned, learn, needs_encoding, without_secrets
from ray_backfill.core.stages import begin_stage, look_at_stage, read_json, write_json
from ray_backfill.data.sources import files, open_source
from tests.command import Command
from tests.data.sources.stores import postgres

# Every secret below is made of these.
SECRETS = ("Hunter77", "Swordfish88")


class Form(NamedTuple):
    """An address, and what is left of it. is_usable: whether a client can read it as it is meant."""

    address: str
    left: str
    is_usable: bool = True


FORMS = [
    Form("postgresql://u:Hunter77@127.0.0.1:1/db#t", "postgresql://u@127.0.0.1:1/db#t"),
    Form("postgres://u:Hunter77@127.0.0.1:1/db#t", "postgres://u@127.0.0.1:1/db#t"),
    Form("postgresql://:Hunter77@127.0.0.1:1/db#t", "postgresql://127.0.0.1:1/db#t"),
    Form(
        "postgresql://u:Hunter77%40Swordfish88@127.0.0.1:1/db?sslmode=prefer#t",
        "postgresql://u@127.0.0.1:1/db?sslmode=prefer#t",
    ),
    Form("postgresql://u:Hunter77%zz@127.0.0.1:1/db#t", "postgresql://u@127.0.0.1:1/db#t"),
    Form("postgresql://u@127.0.0.1:1/db?password=Hunter77#t", "postgresql://u@127.0.0.1:1/db#t"),
    Form("postgresql://127.0.0.1:1/db?user=u&%70assword=Hunter77#t", "postgresql://127.0.0.1:1/db?user=u#t"),
    Form("postgresql://u@127.0.0.1:1/db?sslpassword=Hunter77&bogus=1#t", "postgresql://u@127.0.0.1:1/db?bogus=1#t"),
    Form("postgresql://u:Hunter77/Swordfish88@127.0.0.1:1/db#t", "postgresql://u@127.0.0.1:1/db#t", False),
    Form("postgresql://u:Hunter77#Swordfish88@127.0.0.1:1/db#t", "postgresql://u@127.0.0.1:1/db#t", False),
    Form("postgresql://u:Hunter77?Swordfish88@127.0.0.1:1/db#t", "postgresql://u@127.0.0.1:1/db#t", False),
    Form("postgresql://u:Hunter77@Swordfish88@127.0.0.1:1/db#t", "postgresql://***", False),
    Form("postgresql://u:Hunter77 Swordfish88@127.0.0.1:1/db#t", "postgresql://u@127.0.0.1:1/db#t", False),
    Form("postgresql://u:Hunter77'\"Swordfish88@127.0.0.1:1/db#t", "postgresql://u@127.0.0.1:1/db#t"),
    Form("host=127.0.0.1 password=Hunter77 dbname=db", "host=127.0.0.1 password=*** dbname=db"),
    Form("host=127.0.0.1 password='Hunter77 Swordfish88'", "host=127.0.0.1 password=***"),
    Form("s3://Hunter77:Swordfish88@bucket/model@v2/x.parquet?bogus=1", "s3://bucket/model@v2/x.parquet?bogus=1"),
    Form("s3://Hunter77:Sword/Swordfish88@bucket/x.parquet", "s3://bucket/x.parquet", False),
    Form("s3://b/x?access_key=Hunter77&secret_key=Swordfish88&region=eu", "s3://b/x?region=eu"),
    Form("s3://Hunter77:Swordfish88@bucket/x.lance?bogus=1", "s3://bucket/x.lance?bogus=1"),
    Form("qdrant:http://Hunter77@127.0.0.1:1#c", "qdrant:http://127.0.0.1:1#c"),
    Form("qdrant:http://127.0.0.1:1?api_key=Hunter77@Swordfish88#c", "qdrant:http://127.0.0.1:1#c"),
    Form("milvus:http://root:Hunter77/Swordfish88@127.0.0.1:1#c", "milvus:http://127.0.0.1:1#c", False),
    Form("milvus:http://127.0.0.1:1?token=root:Hunter77", "milvus:http://127.0.0.1:1"),
    Form("https://x.blob/y?sv=1&sig=Hunter77%3D&se=2", "https://x.blob/y?sv=1&se=2"),
]


@pytest.fixture(autouse=True)
def nothing_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test has shown to the process helps no other one."""
    monkeypatch.setattr("ray_backfill.core.secrets._addresses", {})
    monkeypatch.setattr("ray_backfill.core.secrets._values", set())


ALL = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.address)


@ALL
def test_what_is_left_of_an_address_can_be_used_again(form: Form) -> None:
    assert learn(form.address) == form.left
    assert learn(form.left) == form.left
    for text in (f"{form.address}: refused", f"refused: {form.address!r}"):
        assert_clean(without_secrets(text))
        assert_clean(str(InputError(text)))
    assert cleaned({"of": [form.address, ("x", 1)]}) == {"of": [form.left, ["x", 1]]}


@pytest.mark.parametrize(
    ("password", "said"),
    [
        ("Hunter77", "Hunter77"),
        ("Hunter77%40Swordfish88", "Hunter77@Swordfish88"),
        ("Hunter77%40Swordfish88", "Hunter77%40Swordfish88"),
        ("Hunter77/Swordfish88", "Hunter77"),
        ("Hunter77#Swordfish88", "Swordfish88"),
    ],
)
def test_a_library_may_quote_a_password_alone_decoded_or_in_part(password: str, said: str) -> None:
    learn(f"postgresql://u:{password}@h/db#t")
    assert without_secrets(f'invalid token: "{said}"') == 'invalid token: "***"'


def test_a_query_is_no_part_of_an_address() -> None:
    given = "postgresql://u:hunter22@h/db#SELECT id, 'x:y' AS text FROM t WHERE mail LIKE '%a:b@c' OR n / 2 > 1"
    assert not needs_encoding(given)
    assert learn(given) == given.replace(":hunter22", "")
    assert without_secrets("FATAL: 'hunter22'") == "FATAL: '***'"


def test_addresses_that_nobody_gave_are_cleaned_as_well() -> None:
    """In an actor, and in files of earlier versions."""
    for text, left in (
        ("s3://KEY9999:SECRET9999@b/x is gone", "s3://b/x is gone"),
        ("{'user': 'u', 'password': 'a b'}", "{'user': 'u', 'password': '***'}"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("GET /c?api_key=abc failed", "GET /c?api_key=*** failed"),
        ("PGPASSWORD=abc psql", "PGPASSWORD=*** psql"),
    ):
        assert without_secrets(text) == left


def test_names_that_are_no_secrets_stay() -> None:
    for text in (
        "s3://bucket/model@v2/x@y.parquet",
        "postgresql://u@host:5432/db?sslmode=require&passfile=/p#my@table",
        "postgresql://[::1]:5432/db#t",
        "/data/key=5/token/part-0.parquet",
        "see https://host:80/a#b, or write to a@b.c",
        "RAY_AUTH_MODE=token",
        "the password of the database shop is wrong; a key: value",
    ):
        assert without_secrets(text) == text
    # What stands in the address anyway is no secret by itself.
    assert learn("postgresql://shop:shop@host/shop#items") == "postgresql://shop@host/shop#items"
    assert without_secrets("relation shop") == "relation shop"


def test_a_word_of_the_results_may_equal_a_password() -> None:
    learn("postgresql://u:euclidean@host/db#items")
    assert cleaned({"distance": "euclidean"}) == {"distance": "euclidean"}
    assert without_secrets("wrong password euclidean") == "wrong password ***"


def test_manifests_have_none_and_a_new_password_is_no_other_run(tmp_path: Path) -> None:
    keys = [RunKey("simulation", {"truth": ["clicks", f"postgresql://u:{word}@h/db#t"]}) for word in SECRETS]
    begin_stage(tmp_path / "run", keys[0])
    assert_clean(tmp_path)
    assert look_at_stage(tmp_path / "run", keys[1]) is False
    assert keys[0].fingerprint() == keys[1].fingerprint()
    assert not keys[1].difference(read_json(tmp_path / "run" / "manifest.json"))
    write_json(tmp_path / "any.json", {"facts": [{"source": "s3://Hunter77:Swordfish88@bucket/x"}]})
    assert read_json(tmp_path / "any.json") == {"facts": [{"source": "s3://bucket/x"}]}
    assert_clean(tmp_path)
    # What an earlier version wrote gets into no report.
    (tmp_path / "old.json").write_text(json.dumps({"truth": keys[0].settings["truth"]}))
    assert_clean(str(read_json(tmp_path / "old.json")))
    write_json(tmp_path / "old.json", read_json(tmp_path / "old.json"))
    assert_clean(tmp_path)


def assert_clean(shown: str | Path) -> None:
    """No secret in a text, or in the names and contents of all files below a folder."""
    texts = [shown] if isinstance(shown, str) else [text for path in shown.rglob("*") for text in _texts(path)]
    for text in texts:
        for secret in SECRETS:
            assert secret not in text, text[:2000]


def _texts(path: Path) -> Iterator[str]:
    yield str(path)
    if path.is_file():
        content = path.read_bytes()
        yield content.decode("latin-1")
        if content[:4] == content[-4:] == b"PAR1":  # its pages are compressed
            table = pq.read_table(path)
            yield f"{table.schema.metadata} {table.to_pylist()}"


COMMANDS = {
    "simulate": "--data {data} --out {out} --truth clicks {secret}",
    "drill": "--data {data} --out {out} --methods least_squares_query --truth clicks {secret}",
    "fit": "--data {data} --out {out} --methods {secret}",
    "sample": "{data} --budget 12 --truth clicks {secret}",
    "forecast": "{data} --out {out} --new {secret}",
    "import": "--out {out} --gallery {secret}",
    "doctor": "{secret}",
    "report": "{secret}",
    "measure": "--out {out} --new hf:a --texts {secret} --store {secret}",
    "train": "--out {out} --model {secret}",
    "embed": "--out {out} --recipe manifest --data-root {data} --images.images {secret} --only {secret}",
    "reproduce": "--recipe landmarks --out {out} --findings {secret} --methods {secret}",
}


def typed(name: str, arguments: str, **words: Any) -> list[str]:
    """The words of a command line after the program; a word that is put in may hold spaces."""
    return [name, *(word.format(**words) for word in arguments.split())]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of embeddings; beside it what the bucket holds: the gallery, the queries and clicks."""
    folder = tmp_path_factory.mktemp("secrets")
    rng = np.random.default_rng(0)
    kinds = {"gallery": 120, "queries": 30, "train": 60}
    splits: dict[str, dict[str, np.ndarray]] = {}
    for split, rows in kinds.items():
        signal = np.random.default_rng(1).normal(size=(6, 8))[np.arange(rows) % 6]
        splits[split] = {"old": signal[:, :4] + rng.normal(size=(rows, 4)), "new": signal + rng.normal(size=(rows, 8))}
        splits[split] |= {"id": np.arange(rows), "label": np.arange(rows) % 6}
    rb.write_folder(folder / "data", splits["gallery"], splits["queries"], splits["train"])
    clicks = [(query, item) for query in range(30) for item in range(query % 6, 120, 6)]
    pd.DataFrame(clicks, columns=["query", "item"]).to_parquet(folder / "clicks.parquet")
    return folder / "data"


@pytest.mark.parametrize("name", COMMANDS)
def test_failures_show_none(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, form in enumerate(FORMS):
        ended = command(*typed(name, COMMANDS[name], data=data, out=tmp_path / f"out{number}", secret=form.address))
        assert ended.code == 2, ended
        assert ended.err.splitlines()[-1].startswith("error: "), ended.err
        assert_clean(ended.shown)
    assert_clean(tmp_path)


def test_clients_get_the_secret_and_their_errors_do_not_show_it() -> None:
    """A caller in Python prints an error with all that caused it."""
    for form in FORMS:
        with pytest.raises(InputError) as caught:
            open_source(form.address)
        assert_clean("".join(traceback.format_exception(caught.value)))
        if not form.is_usable:
            assert "must be percent-encoded" in str(caught.value)


BUCKET = "s3://Hunter77:Swordfish88@bucket"
# A client whose addresses carry secrets: what it reads is the folder above the data. Then the command as it is typed.
WITH_BUCKET = """
import sys, time
from pathlib import Path
from ray_backfill.data.sources import files
bucket, how, sys.argv = Path(sys.argv[1]), sys.argv[2], ["ray-backfill", *sys.argv[3:]]
def client(text):
    assert ":Sword" + "fish88@bucket" in text  # the client gets it
    if how == "hangs":
        Path("reached").touch()
        time.sleep(120)
    if how == "breaks":
        import logging, threading
        logging.getLogger("client").error("cannot connect to %s", text)
        thread = threading.Thread(target=lambda: 1 / 0 if not text else int(text))
        thread.start()
        thread.join()
        raise RuntimeError(f"unexpected: {text!r} and {'Sword' + 'fish88'} alone")
    return Path(str(bucket) + text.partition("@bucket")[2])
files.path_of = client
from ray_backfill.cli.main import main
main()
if how == "works":
    from ray._private.utils import get_entrypoint_name  # what Ray records of this process
    print("recorded as", get_entrypoint_name())
"""


@pytest.fixture
def bucket(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "path_of", lambda text: Path(str(data.parent) + text.partition("bucket")[2]))
    return data.parent


def test_messages_name_a_source_without_its_secret(bucket: Path) -> None:
    assert open_source(f"{BUCKET}/clicks.parquet").name == "s3://bucket/clicks.parquet"


def test_success_leaves_none(
    bucket: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for line in (
        "import --out mine --gallery {bucket}/data/gallery.parquet --queries {bucket}/data/queries.parquet",
        "import --out mine --train {bucket}/data/train.parquet {bucket}/data/train.parquet",
        "import --out mine --gallery {bucket}/data/gallery.parquet",  # it is there
        "doctor mine",
        "simulate --data mine --out run --methods rm_naive --truth clicks {bucket}/clicks.parquet",
        "simulate --data mine --out run --methods rm_naive offline --truth clicks {bucket}/clicks.parquet",
        "fit --data mine --out fits --methods least_squares_query --truth clicks {bucket}/clicks.parquet",
        "report run",
        "sample mine --budget 40",
        "forecast mine --out run --methods rm_naive --metrics mAP --new {bucket}/data/gallery.parquet",
    ):
        ended = command(*typed(*line.split(" ", 1), bucket=BUCKET))
        assert ended.code == 0, ended
        assert ended.out, line
        assert_clean(ended.shown)
    for page in ("run/results/report.html", "run/results/manifest.json", "mine/gallery.parquet/_manifest.json"):
        assert "s3://bucket/" in Path(page).read_text(), page
    assert_clean(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("how", ["{user}:Hunter77@", "?password="])
def test_a_database_with_a_password_leaves_none(
    how: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    import shutil

    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory() as folder, postgres(Path(folder)) as address:
        import psycopg

        clicks = pd.read_parquet(data.parent / "clicks.parquet")
        with psycopg.connect(address) as connection:
            connection.execute("CREATE TABLE clicks (query bigint, item bigint)")
            with connection.cursor().copy("COPY clicks FROM STDIN") as copy:
                for row in clicks.itertuples(index=False):
                    copy.write_row(tuple(map(int, row)))
        plain = address.replace("postgres:@", "postgres@")
        secret = plain.replace("postgres@", "postgres:Hunter77@") if "@" in how else f"{plain}&password=Hunter77"
        secret += "#clicks"
        shutil.copytree(data, "mine")
        run = command(*typed("simulate", "--data mine --out run --methods rm_naive --truth clicks {s}", s=secret))
        without_vectors = command(*typed("import", "--out other --gallery {s} --id item --old query", s=secret))
        assert (run.code, without_vectors.code) == (0, 2)
        assert_clean(run.shown + without_vectors.shown)
        assert plain in Path("run/results/manifest.json").read_text()
    assert_clean(tmp_path)


def child(
    how: str, bucket: Path, words: list[str], cwd: Path, more: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    program = [sys.executable, "-c", WITH_BUCKET, str(bucket), how, *words]
    environment = os.environ | {"TMPDIR": str(cwd), "PYTHONPATH": str(Path(rb.__file__).parents[1])}
    if more:
        environment = {name: value for name, value in environment.items() if name != "RAY_ADDRESS"} | dict(more)
    pipe = subprocess.PIPE
    return subprocess.Popen(program, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.full
@pytest.mark.parametrize(
    "line",
    [
        "import --out out --gallery {bucket}/data/gallery.parquet",
        "simulate --data {data} --out out --truth clicks {bucket}/clicks.parquet",
        "drill --data {data} --out out --methods least_squares_query --truth clicks {bucket}/clicks.parquet",
        "forecast {data} --out out --sample {data}/../sample.parquet --new {bucket}/data/gallery.parquet",
    ],
)
def test_a_killed_run_shows_and_leaves_none(
    line: str, bucket: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    sample = data.parent / "sample.parquet"
    if "forecast" in line and not sample.exists():
        assert command(*typed("sample", "{data} --budget 40 --out {out}", data=data, out=sample)).code == 0
    words = typed(*line.split(" ", 1), data=data, bucket=BUCKET)
    with child("hangs", bucket, words, tmp_path) as running:
        try:
            while not (tmp_path / "reached").exists():
                assert running.poll() is None, running.communicate()
                time.sleep(0.05)
            process = psutil.Process(running.pid)
            assert "bucket/" in " ".join(process.cmdline())
            for each in (process, *process.children(recursive=True)):
                assert_clean(" ".join(each.cmdline()))
            lock = tmp_path / "out" / LOCK
            assert lock.stat().st_mode & 0o777 == 0o600
            said = command(*words).error
            assert f"is in use by process {running.pid}" in said
            assert "bucket/" in said
            assert_clean(said)
        finally:
            running.send_signal(signal.SIGKILL)
        out, err = running.communicate()
    assert_clean(out + err)
    assert lock.exists()
    assert_clean(tmp_path)


def test_the_traceback_of_a_bug_shows_none(bucket: Path, tmp_path: Path) -> None:
    words = typed("import", "--out out --gallery {bucket}/data/gallery.parquet", bucket=BUCKET)
    with child("breaks", bucket, words, tmp_path) as running:
        out, err = running.communicate()
    assert running.returncode == 1
    assert "RuntimeError: unexpected: 's3://bucket/data/gallery.parquet' and *** alone" in err
    assert "cannot connect to s3://bucket/data/gallery.parquet" in err  # logged
    assert "ValueError: invalid literal for int()" in err  # in a thread
    assert_clean(out + err)
    assert_clean(tmp_path)


@pytest.mark.heavy
@pytest.mark.cluster
def test_ray_is_told_none(bucket: Path, data: Path, tmp_path: Path) -> None:
    """Neither in the arguments of a process nor in what Ray records and logs, which its dashboard shows."""
    line = "--data {data} --out out --shards 2 --methods rm_naive --truth clicks {bucket}/clicks.parquet"
    words = typed("simulate", line, data=data, bucket=BUCKET)
    before = {process.pid for process in psutil.process_iter()}
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as ray_folder:  # the paths of its sockets must be short
        shown = set[str]()
        with child("works", bucket, words, tmp_path, {"RAY_TMPDIR": ray_folder}) as running:
            while running.poll() is None:
                for process in psutil.process_iter():
                    with suppress(psutil.Error):
                        if process.pid not in before:
                            shown.add(" ".join(process.cmdline()))
                time.sleep(0.5)
            out, err = running.communicate()
        assert running.returncode == 0, err
        assert any("gcs_server" in each for each in shown)
        assert any("ShardActor" in each for each in shown)
        early = {each for each in shown if "bucket/clicks" in each and "Hunter77" in each}  # before it has started
        assert_clean("\n".join(shown - early))
        assert len(early) <= 1
        assert "bucket/clicks.parquet" in out.partition("recorded as")[2]
        assert next(Path(ray_folder).rglob("*.log"))
        assert_clean(Path(ray_folder))
    assert_clean(out + err)
    assert_clean(tmp_path)
