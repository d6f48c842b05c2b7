"""Embedding on real Ray actors: the models' own vectors, no part done twice, and one command to a report."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ray_backfill.cli.main import _main
from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import OtherSettingsError, read_json, write_json
from ray_backfill.data.folder import read_folder
from ray_backfill.data.identity import short_names
from ray_backfill.encode.items import ItemSettings, ItemSources, write_items
from ray_backfill.encode.kinds import parse_spec
from ray_backfill.encode.part import ATTEMPTS, EncodeRequest
from ray_backfill.encode.stage import embed_items
from ray_backfill.workers.settings import EmbedActors
from tests.encode import _models

OLD, NEW = "python:tests.encode._models:old", "python:tests.encode._models:New"
ANIMALS = ["cat", "dog", "bird", "fish", "horse", "cow", "sheep", "goat", "duck", "mouse"]


def corpus(path: Path, rows: int = 120) -> str:
    rng = np.random.default_rng(0)
    texts = [f"{ANIMALS[row % 10]} {' '.join(rng.choice(ANIMALS, rng.integers(1, 6)))}" for row in range(rows)]
    items = [{"id": f"i{row}", "text": text, "label": ANIMALS[row % 10]} for row, text in enumerate(texts)]
    items[7]["text"] = " "
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return str(path)


def request(items: Path, old: str = OLD, new: str = NEW, modality: str = "text") -> EncodeRequest:
    return EncodeRequest(items, modality, {"old": parse_spec(old), "new": parse_spec(new)})


@pytest.fixture
def items(tmp_path: Path) -> Path:
    sources = ItemSources("text", corpus(tmp_path / "corpus.jsonl"))
    return write_items(tmp_path / "items", sources, ItemSettings(draw_queries=12, draw_train=24, part_rows=20))


@pytest.mark.usefixtures("ray_session")
def test_vectors_are_the_models_own_and_no_part_is_done_twice(tmp_path: Path, items: Path) -> None:
    out = embed_items(tmp_path / "e", request(items), EmbedActors(number=2))
    folder = read_folder(out)
    assert folder.queries is not None
    assert folder.train is not None
    assert len(folder.gallery) + len(folder.queries) + len(folder.train) == 119
    for split in (folder.gallery, folder.queries, folder.train):
        texts = split.column("text").to_pylist()
        np.testing.assert_array_equal(split.old, _models.old(texts))
        side = "query" if split is folder.queries else "document"
        np.testing.assert_array_equal(split.new, _models.New()(texts, side))
    broken = pq.read_table(out / "broken.parquet").to_pylist()
    assert [(row["id"], row["reason"]) for row in broken] == [("i7", "its text is empty")]
    facts = read_json(out / "manifest.json")
    assert (facts["items"], facts["broken_items"], facts["finished"]) == (119, 1, True)
    recorded = {"old": {"name": OLD}, "new": {"name": NEW}}
    assert folder.identities == {name: recorded[name] | own for name, own in facts["settings"]["models"].items()}
    for part in out.glob("*/part-*.parquet"):
        assert json.loads(pq.read_schema(part).metadata[b"ray_backfill.models"]) == folder.identities
    parts = sorted(out.glob("*/part-*.parquet"))
    before = {part: (part.read_bytes(), part.stat().st_mtime_ns) for part in parts}
    assert len(parts) == 8
    assert embed_items(out, request(items), EmbedActors()) == out
    # As after a kill: one part is missing.
    parts[1].unlink()
    write_json(out / "manifest.json", facts | {"finished": False})
    embed_items(out, request(items), EmbedActors(number=2))
    for part, (content, written) in before.items():
        assert part.read_bytes() == content
        assert (part.stat().st_mtime_ns == written) == (part != parts[1])
    # As after a power cut when the last part had its name, and its mark was still there.
    write_json(out / "manifest.json", facts | {"finished": False})
    (out / ATTEMPTS).mkdir()
    (out / ATTEMPTS / "train-part-000000.1").write_text("started")
    embed_items(out, request(items), EmbedActors(number=2))
    assert not (out / ATTEMPTS).exists()


@pytest.mark.usefixtures("ray_session")
def test_another_model_is_refused(tmp_path: Path, items: Path) -> None:
    out = embed_items(tmp_path / "e", request(items), EmbedActors(number=1))
    with pytest.raises(OtherSettingsError, match=r"models\.new\.dims: 0 there, 8 requested"):
        embed_items(out, request(items, new=f"{NEW}#dims=8"), EmbedActors())
    cut = embed_items(tmp_path / "cut", request(items, new=f"{NEW}#dims=8"), EmbedActors(number=1))
    part = next((cut / "gallery.parquet").glob("*.parquet"))
    shutil.copy(part, out / "gallery.parquet" / "part-999999.parquet")
    with pytest.raises(InputError, match=r"'new' has two models.*@.*@.*part-999999"):
        read_folder(out)
    (out / "gallery.parquet" / "part-999999.parquet").unlink()
    probes = read_json(out / "probes.json")
    probes["old"][0][0] += 0.1
    write_json(out / "probes.json", probes)
    write_json(out / "manifest.json", read_json(out / "manifest.json") | {"finished": False})
    with pytest.raises(InputError, match="the old model gives other vectors than when"):
        embed_items(out, request(items), EmbedActors())
    embed_items(out, request(items), EmbedActors(number=1), overwrite=True)
    assert read_json(out / "probes.json") != probes
    with pytest.raises(InputError, match="--old and --new are the same model"):
        embed_items(tmp_path / "f", request(items, new=OLD), EmbedActors())
    with pytest.raises(InputError, match="failed on 5 texts: ValueError: out of order"):
        embed_items(tmp_path / "g", request(items, new="python:tests.encode._models:fails"), EmbedActors())
    with pytest.raises(InputError, match=r"failed on .* texts: ValueError: not this one"):
        embed_items(tmp_path / "h", request(items, new="python:tests.encode._models:chokes"), EmbedActors())
    with pytest.raises(InputError, match=r"exits_at_horses failed on .* texts: SystemExit: 7 \(_models.py, line"):
        embed_items(tmp_path / "i", request(items, new="python:tests.encode._models:exits_at_horses"), EmbedActors())


@pytest.mark.usefixtures("ray_session")
def test_images_are_embedded_and_broken_ones_listed(tmp_path: Path) -> None:
    rng, root = np.random.default_rng(0), tmp_path / "images"
    for row in range(40):
        path = root / f"c{row % 4}" / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        colour = rng.integers(0, 60, 3) + 60 * (row % 4)
        Image.fromarray(np.broadcast_to(colour.astype(np.uint8), (12, 10, 3)).copy()).save(path)
    (root / "c0" / "0.png").write_bytes((root / "c0" / "4.png").read_bytes()[:40])
    items = write_items(tmp_path / "items", ItemSources("image", str(root)), ItemSettings(part_rows=16))
    models = "python:tests.encode._models:pixels", "python:tests.encode._models:means"
    out = embed_items(tmp_path / "e", request(items, *models, "image"), EmbedActors(number=1))
    folder = read_folder(out)
    assert (folder.gallery.old.shape[1], folder.gallery.new.shape[1]) == (48, 3)
    (broken,) = pq.read_table(out / "broken.parquet").to_pylist()
    assert broken["id"] == "c0/0.png"
    name = str(folder.gallery.id[0])
    np.testing.assert_array_equal(folder.gallery.new[0], _models.means([Image.open(root / name)])[0])


@pytest.mark.usefixtures("ray_session")
def test_one_command_leads_from_two_words_to_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--old", OLD, "--new", NEW, "--texts", corpus(tmp_path / "c.jsonl", 200), "--out", str(tmp_path / "run")]
    words += ["--methods", "offline", "procrustes_gallery", "--metrics", "mAP@100", "--items.draw-train", "50"]
    _main(["simulate", *words])
    shown = capsys.readouterr().out
    assert "mAP@100 while the gallery is backfilled" in shown
    assert (tmp_path / "run" / "results" / "report.html").exists()
    if "next: " in shown:
        following = " ".join(shown[shown.index("next: ") :].split())
        assert f"ray-backfill drill --old {OLD} --new {NEW}" in following
    _main(["fit", *words[:8], *words[-2:], "--methods", "procrustes_gallery"])
    assert "procrustes_gallery: " in capsys.readouterr().out
    _main(["embed", *words[:8], *words[-2:]])
    assert f"embeddings: {tmp_path / 'run' / 'embeddings'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--old", OLD, "--texts", "a.csv"], "missing: --new STR"),
        (["--old", OLD, "--new", "MiniLM", "--texts", "a.csv"], "--new 'MiniLM' names no model"),
        (["--old", OLD, "--new", NEW, "--texts", "a.csv", "--images", "b"], "give --texts or --images"),
        (["--old", OLD, "--new", "openai:x", "--images", "."], "has no images"),
    ],
)
def test_wrong_words_are_refused(words: list[str], says: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=says):
        _main(["simulate", *words])


@pytest.mark.usefixtures("ray_session")
def test_a_drill_embeds_the_texts_while_the_old_model_serves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--old", OLD, "--new", NEW, "--texts", corpus(tmp_path / "c.jsonl", 200), "--out", str(tmp_path / "run")]
    words += ["--items.draw-train", "50", "--live.method", "procrustes_gallery", "--live.shards.number", "1"]
    words += ["--live.traffic.warm-up-s", "0.2", "--live.traffic.rate-per-s", "20", "--live.quiet-s", "0.2"]
    words += ["--points", "3", "--actors.number", "1"]
    _main(["drill", *words])
    shown = capsys.readouterr().out
    assert "0 violations" in shown
    before = read_folder(tmp_path / "run" / "before", gallery_needs=("old",))
    assert list(before.gallery.vectors) == ["old"]
    live = tmp_path / "run" / "live"
    models = short_names(before.identities)
    assert [name.partition("@")[0] for name in models.values()] == [
        "tests.encode._models:old",
        "tests.encode._models:New",
    ]
    assert read_json(live / "manifest.json")["data"]["models"] == models
    assert json.loads((live / "journal.jsonl").read_text().splitlines()[0])["models"] == models
    assert models["new"] in (live / "report.html").read_text("utf-8")
    quality, replayed = (pd.read_parquet(live / f"{name}.parquet") for name in ("quality", "replayed"))
    both = quality.merge(replayed[replayed.serving == "backfill"], on=["metric", "t"])
    assert len(both) == 6
    np.testing.assert_array_equal(both["live"], both["value"])
    texts = before.gallery.column("text").to_pylist()
    parts = [pq.read_table(part) for part in (tmp_path / "run" / "live" / "parts").glob("*.parquet")]
    embedded = {
        at: row for part in parts for at, row in zip(part["position"].to_pylist(), part["new"].to_pylist(), strict=True)
    }
    assert sorted(embedded) == list(range(len(texts)))
    np.testing.assert_array_equal([embedded[at] for at in range(len(texts))], _models.New()(texts, "document"))


@pytest.mark.usefixtures("ray_session")
def test_a_forecast_embeds_a_sample_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--old", OLD, "--new", NEW, "--texts", corpus(tmp_path / "c.jsonl", 400), "--out", str(tmp_path / "run")]
    words += ["--items.draw-train", "60", "--items.draw-queries", "40", "--actors.number", "1", "--methods", "rm_naive"]
    _main(["forecast", *words, "--budget", "50%"])
    assert "Forecast from 150 of 299 new embeddings (50.2 %)" in " ".join(capsys.readouterr().out.split())
    first = tmp_path / "run" / "sampled" / "round-1"
    sampled = pq.read_table(first / "gallery.parquet").to_pydict()
    assert len(sampled["id"]) == 150
    assert "old" not in sampled
    np.testing.assert_array_equal(sampled["new"], _models.New()(sampled["text"], "document"))
    assert list(read_folder(tmp_path / "run" / "before", gallery_needs=("old",)).gallery.vectors) == ["old"]
    for budget, says in (
        ("200%", "no more than all items"),
        ("some", "is a number of items or a share"),
        ("900", "give more than 0, and no more than all 299 items"),
    ):
        with pytest.raises(InputError, match=says):
            _main(["forecast", *words, "--budget", budget])
    written = (first / "manifest.json").stat().st_mtime_ns
    _main(["simulate", *words, "--forecast", "60%"])
    assert "Forecast from 179 of 299 new embeddings (59.9 %)" in " ".join(capsys.readouterr().out.split())
    assert (first / "manifest.json").stat().st_mtime_ns == written, "the first 150 are not embedded again"
    second = pq.read_table(tmp_path / "run" / "sampled" / "round-2" / "gallery.parquet").to_pydict()
    assert len(set(second["id"]) - set(sampled["id"])) == 29
    written = (first / "manifest.json").stat().st_mtime_ns
    _main(["forecast", *words, "--budget", "60%", "--overwrite"])
    assert (first / "manifest.json").stat().st_mtime_ns == written, "nothing else was asked for"
    capsys.readouterr()
    no_evaluation = words[: words.index("--methods")]
    _main(["sample", *no_evaluation, "--budget", "20"])
    shown, said = capsys.readouterr()
    assert "sample.parquet: 179 items" in shown
    assert "has 179 items already, more than asked; all of them are used" in said


@pytest.mark.usefixtures("ray_session")
def test_a_right_answer_that_was_left_out_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NFCorpus and others judge documents that have no text."""
    root = tmp_path / "beir"
    (root / "qrels").mkdir(parents=True)
    texts = [f"{ANIMALS[row % 10]} {ANIMALS[row % 7]} {row}" for row in range(60)]
    texts[4] = ""
    for name, rows in (("corpus", texts), ("queries", ANIMALS)):
        lines = (json.dumps({"_id": f"{name}{row}", "text": text}) + "\n" for row, text in enumerate(rows))
        (root / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    judged = [f"queries{row % 10}\tcorpus{row}\t1" for row in range(60)]
    (root / "qrels" / "test.tsv").write_text("q\td\ts\n" + "\n".join(judged) + "\n", encoding="utf-8")
    words = ["--old", OLD, "--new", NEW, "--texts", str(root), "--out", str(tmp_path / "run")]
    _main(["simulate", *words, "--methods", "rm_naive", "--actors.number", "1"])
    assert "report: " in capsys.readouterr().out
    listed = pq.read_table(tmp_path / "run" / "embeddings" / "gallery_left_out.parquet").to_pylist()
    assert listed == [{"id": "corpus4", "reason": "its text is empty"}]


def test_an_actor_with_another_model_does_not_serve(tmp_path: Path, items: Path) -> None:
    from ray_backfill.data.folder import StoredSplit
    from ray_backfill.drill.jobs import FromItems
    from ray_backfill.drill.ray.embedding import _from_items
    from ray_backfill.encode.encoder import Device

    specs = {"new": parse_spec(NEW)}
    source = FromItems(
        items, "text", specs, StoredSplit(items / "gallery.parquet"), Device(), {"new": [[1.0] * 32] * 10}
    )
    with pytest.raises(InputError, match="the new model gives other vectors in an actor than here"):
        _from_items(source, lambda _: None)(np.arange(3), ("new",))


MORTAL = """
import os
from pathlib import Path
import ray
from tests.encode._models import old

HERE = Path(__file__).parent


def dies_in(step):
    # Not in the process of the test, and at the tenth time no more, so that no test waits for ever.
    deaths = HERE / "deaths"
    is_actor = ray.is_initialized() and ray.get_runtime_context().get_actor_id()
    if is_actor and (HERE / f"sick-{step}").exists() and os.stat(deaths).st_size < int((HERE / "most").read_text()):
        with deaths.open("a") as file:
            file.write(".")
        os._exit(3)


class New:
    def __init__(self):
        dies_in("loading")

    def __call__(self, texts):
        if any("horse" in text for text in texts):
            dies_in("embedding")
        return old(texts)[:, :8]
"""


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("step", "while_each"),
    [
        pytest.param("loading", "the start, while each loaded {}", marks=pytest.mark.heavy),
        (
            "embedding",
            r"20 items of the gallery, i20 to i39 \(part-000001\), while each embedded them with "
            "python:tests.encode._models:old and {}",
        ),
    ],
)
def test_a_model_that_dies_is_tried_three_times_and_what_is_finished_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, while_each: str
) -> None:
    module = f"mortal_{step}"
    for name, text in ((f"{module}.py", MORTAL), (f"sick-{step}", ""), ("deaths", ""), ("most", "10")):
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    rows = [{"id": f"i{row:02}", "text": f"{ANIMALS[row % 4]} {row}"} for row in range(60)]
    rows[27]["text"] = "horse"  # in the second of three parts
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "q.jsonl").write_text(json.dumps({"id": "q", "text": "cow"}) + "\n", encoding="utf-8")
    sources = ItemSources("text", str(tmp_path / "c.jsonl"), str(tmp_path / "q.jsonl"))
    items = write_items(tmp_path / "items", sources, ItemSettings(draw_train=0, part_rows=20))
    new, out = f"python:{module}:New", tmp_path / "e"
    says = f"3 processes died at {while_each.format(new)}; mend the model"
    with pytest.raises(InputError, match=says) as error:
        embed_items(out, request(items, new=new), EmbedActors(number=1))
    assert "\n" not in str(error.value)
    assert (tmp_path / "deaths").read_text() == "..."
    finished = {part: part.stat().st_mtime_ns for part in out.glob("*/part-*.parquet")}
    assert (out / "gallery.parquet" / "part-000001.parquet") not in finished
    # It counts anew, and survives two deaths; a node that is lost is one.
    (tmp_path / "most").write_text("5")
    embed_items(out, request(items, new=new), EmbedActors(number=1))
    assert (tmp_path / "deaths").read_text() == "....."
    assert {part: part.stat().st_mtime_ns for part in finished} == finished
    gallery = read_folder(out).gallery
    np.testing.assert_array_equal(gallery.new, _models.old(gallery.column("text").to_pylist())[:, :8])
    assert not (out / ".attempts").exists()


@pytest.mark.heavy
@pytest.mark.usefixtures("ray_session")
def test_a_drill_whose_model_dies_ends_in_one_line_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("mortal_drill.py", MORTAL), ("sick-embedding", ""), ("deaths", ""), ("most", "20")):
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name, rows, last in (("c", 100, "horse"), ("q", 10, "cow")):  # only the drill meets the horse
        texts = [f"{ANIMALS[row % 4]} {row}" for row in range(rows - 1)] + [last]
        lines = [{"id": f"{name}{row}", "text": text, "label": text.split()[0]} for row, text in enumerate(texts)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    words = ["--old", OLD, "--new", "python:mortal_drill:New", "--texts", str(tmp_path / "c.jsonl")]
    words += ["--queries", str(tmp_path / "q.jsonl"), "--items.draw-train", "0", "--out", str(tmp_path / "run")]
    words += ["--live.method", "rm_naive", "--live.shards.number", "1", "--live.traffic.warm-up-s", "0.2"]
    words += ["--live.traffic.rate-per-s", "20", "--points", "3", "--actors.number", "1"]
    with pytest.raises(
        InputError, match=r"^3 processes died at the \d+ items of operation \d+, while each embedded them"
    ):
        _main(["drill", *words])
    assert (tmp_path / "deaths").read_text() == "..."
    (tmp_path / "sick-embedding").unlink()
    _main(["drill", *words])
    assert "0 violations" in capsys.readouterr().out


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos._exit(3)",
        "def new(texts):\n    import os\n    os._exit(3)",
        "def new(texts):\n    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_a_model_that_ends_the_command_is_named(tmp_path: Path, code: str) -> None:
    """Before any actor starts, the command loads the models and embeds five texts."""
    (tmp_path / "mortal.py").write_text(code)
    words = ["--old", OLD, "--new", "python:mortal:new", "--texts", corpus(tmp_path / "c.jsonl"), "--out", "out"]
    command = [sys.executable, "-m", "ray_backfill", "embed", *words]
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode in (3, -9)
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert line.startswith("error: the model python:mortal:new ended this process, or took all memory; mend it")
