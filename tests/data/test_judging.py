"""Judging a few queries: what is to be judged, and what the filled file says, against plain numpy."""

import csv
import io
import json
import math
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.judging import DEPTH, MOST, draw, read_sheet, write_sheet
from ray_backfill.data.truth import filter_of, find_truth
from tests.command import Command

CLASSES, N, Q = 20, 300, 90


def write(path: Path, old: float = 1.4, new: float = 0.9, queries: int = Q, own: float = 0.1, **more: Any) -> Path:
    """Embeddings of two models. old, new: noise that they share; own: of the new one. Texts are the classes."""
    rng, centre = np.random.default_rng(1), np.random.default_rng(2).normal(size=(CLASSES, 12))

    def columns(rows: int, name: str) -> dict[str, Any]:
        label = rng.integers(CLASSES, size=rows)
        shared, further = rng.normal(size=(2, rows, 12))
        vectors = {"old": centre[label] + old * shared, "new": centre[label] + new * shared + own * further}
        return vectors | {"id": [f"{name}{row}" for row in range(rows)], "text": [f"=class {each}" for each in label]}

    return rb.write_folder(path, columns(N, "d"), columns(queries, "q") | more)


def classes(folder: EmbeddingFolder) -> tuple[list[str], list[str]]:
    """Of queries and gallery."""
    assert folder.queries is not None
    return folder.queries.texts("text").tolist(), folder.gallery.texts("text").tolist()


def precision(folder: EmbeddingFolder, model: str) -> np.ndarray:
    """(Q,) share of right answers among the first items of a model."""
    assert folder.queries is not None
    sides = (each.vectors[model].astype(np.float64) for each in (folder.queries, folder.gallery))
    query, gallery = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in sides)
    of_query, of_item = (np.array(each) for each in classes(folder))
    first = np.argsort(-query @ gallery.T, axis=1, kind="stable")[:, :DEPTH]
    return np.asarray((of_item[first] == of_query[:, None]).mean(axis=1))


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as opened:
        return list(csv.reader(opened))


def filled(rows: list[list[str]], judged: int = 1000) -> list[list[str]]:
    """The rows as a person fills them, who judges the first queries."""
    some = list(dict.fromkeys(row[0] for row in rows[1:]))[:judged]
    return [rows[0], *([*row[:4], str(int(row[1] == row[3])) if row[0] in some else ""] for row in rows[1:])]


def save(path: Path, rows: list[list[str]], delimiter: str = ",", encoding: str = "utf-8") -> Path:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    path.write_text(text.getvalue(), encoding=encoding, newline="")
    return path


@pytest.mark.parametrize("weighted", [False, True])
def test_judged_to_the_end_it_is_the_difference_of_precision(weighted: bool, tmp_path: Path) -> None:
    weight = np.random.default_rng(3).uniform(0.5, 4, Q) if weighted else np.ones(Q)
    more: dict[str, Any] = {"weight": weight} if weighted else {}
    folder = read_folder(write(tmp_path / "data", **more))
    drawn = draw(folder, "cosine")
    write_sheet(folder, tmp_path / "j.csv", drawn)
    found = read_sheet(folder, save(tmp_path / "j.csv", filled(rows_of(tmp_path / "j.csv"))), drawn)
    difference = precision(folder, "new") - precision(folder, "old")
    assert found["difference"] == pytest.approx(np.average(difference, weights=weight), abs=1e-12)
    assert found["low"] < found["difference"] < found["high"]
    assert found["queries"] == found["to_judge"] == len(set(drawn.query.tolist()))
    assert 0.5 < drawn.share < 1, "for some queries both models find the same"


def test_few_queries_estimate_the_difference_of_all(tmp_path: Path) -> None:
    """The mean over draws is the truth, and the intervals hold it."""
    folder, sheet = read_folder(write(tmp_path / "data", queries=400)), tmp_path / "j.csv"
    true, draws = float((precision(folder, "new") - precision(folder, "old")).mean()), 60
    estimates, held = [], 0
    for seed in range(draws):
        drawn = draw(folder, "cosine", seed=seed)
        write_sheet(folder, sheet, drawn)
        found = read_sheet(folder, save(sheet, filled(rows_of(sheet), 25)), drawn)
        assert found["queries"] == 25
        estimates.append(found["difference"])
        held += found["low"] <= true <= found["high"]
    assert abs(np.mean(estimates) - true) < 3 * np.std(estimates) / math.sqrt(draws)
    assert held >= 0.85 * draws


def test_a_judge_cannot_see_which_model_found_an_item(tmp_path: Path) -> None:
    folder, sheet = read_folder(write(tmp_path / "data", queries=200)), tmp_path / "j.csv"
    drawn = draw(folder, "cosine")
    write_sheet(folder, sheet, drawn)
    assert sheet.read_bytes().startswith(b"\xef\xbb\xbf"), "spreadsheets know UTF-8 by it"
    head, *rows = rows_of(sheet)
    assert head == ["query", "query_text", "item", "item_text", "right"]
    assert len({(row[0], row[2]) for row in rows}) == len(rows), "each pair once"
    assert all(row[1].startswith("'=class") and not row[4] for row in rows), "no formula, and nothing judged"
    assert len([query for query, _ in groupby(row[0] for row in rows)]) == MOST, "a query's rows together"
    first = {row[0]: sign for row, sign in zip(reversed(rows), reversed(drawn.sign.tolist()), strict=True)}
    new = sum(sign == 1 for sign in first.values())
    assert abs(new - len(first) / 2) < 3 * math.sqrt(len(first)) / 2, "as often of one model as of the other"


@pytest.mark.parametrize(
    "change",
    [
        lambda path, rows: save(path, rows, ";", "utf-8-sig"),
        lambda path, rows: save(path, rows, "\t"),
        lambda path, rows: save(path, [rows[0], *sorted(rows[1:], key=lambda row: row[2])]),
        lambda path, rows: save(path, [[row[4], row[2], "note", row[0]] for row in rows]),
        lambda path, rows: save(path, [[name.upper() for name in rows[0]], *rows[1:], [""] * 5]),
        lambda path, rows: save(path, [rows[0], *([*row[:4], row[4].replace("1", "2,5")] for row in rows[1:])], ";"),
        lambda path, rows: save(path, [rows[0], *(row for row in rows[1:] if row[4])]),
    ],
)
def test_what_spreadsheets_make_of_it_says_the_same(
    change: Callable[[Path, list[list[str]]], Path], tmp_path: Path
) -> None:
    folder, sheet = read_folder(write(tmp_path / "data")), tmp_path / "j.csv"
    drawn = draw(folder, "cosine")
    write_sheet(folder, sheet, drawn)
    rows = filled(rows_of(sheet), 30)
    plain = read_sheet(folder, save(sheet, rows), drawn)
    assert plain["queries"] == 30
    assert read_sheet(folder, change(sheet, rows), drawn) == plain


def _cut(rows: list[list[str]], row: int, column: int, value: str) -> list[list[str]]:
    return [[*each[:column], value, *each[column + 1 :]] if n == row else each for n, each in enumerate(rows)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: _cut(rows, 3, 4, "yes"), "line 4: the column right has 'yes'; write 1, 0, a grade or nothing"),
        (lambda rows: _cut(rows, 3, 4, "inf"), "line 4: the column right has 'inf'"),
        (lambda rows: _cut(rows, 2, 4, ""), "line 3: query .* is half judged, without item .*; judge all of its items"),
        (lambda rows: [*rows[:2], *rows[3:]], "j.csv: a row is missing: query .* is half judged, without item"),
        (lambda rows: _cut(rows, 2, 2, "1.2E+17"), r"line 3: item '1.2E\+17' of query .* take the file .* as text"),
        (lambda rows: _cut(rows, 1, 0, "x"), "line 2: item .* of query 'x' is not to be judged"),
        (
            lambda rows: [*rows, [*rows[1][:4], "7" if rows[1][4] == "0" else "0"]],
            "another judgement of item .* than before; keep one of them",
        ),
        (lambda rows: rows[1:], "the first line has no column 'query'; keep that of simulate --judge: query,"),
        (lambda rows: [row[:4] for row in rows], "the first line has no column 'right'"),
        (lambda rows: filled(rows, 9), "has 9 judged queries; fill the column right of at least 10"),
        (lambda rows: [[*row[:4], ""] if n else row for n, row in enumerate(rows)], "has 0 judged queries"),
        (lambda rows: [], "No columns to parse from file; save it as CSV in UTF-8"),
    ],
)
def test_what_cannot_be_read(
    change: Callable[[list[list[str]]], list[list[str]]], message: str, tmp_path: Path
) -> None:
    data, sheet = write(tmp_path / "data"), tmp_path / "j.csv"
    folder = read_folder(data)
    write_sheet(folder, sheet, draw(folder, "cosine"))
    save(sheet, change(filled(rows_of(sheet))))
    with pytest.raises(InputError, match=message) as raised:
        find_truth(folder, ("judged", str(sheet)))
    assert "\n" not in str(raised.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    folder = read_folder(write(tmp_path / "data"))
    with pytest.raises(InputError, match=r"no\.csv cannot be read: No such file"):
        find_truth(folder, ("judged", str(tmp_path / "no.csv")))
    (tmp_path / "excel.csv").write_text("query;item;right\nä;b;1\n", encoding="latin1")
    with pytest.raises(InputError, match=r"line 2: byte 0xe4 is not UTF-8; convert the file"):
        find_truth(folder, ("judged", str(tmp_path / "excel.csv")))
    (tmp_path / "quote.csv").write_text("query,item,right\nq1,d1,1,2,3\nq2,d,1,2,3,4\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"quote.csv: Error tokenizing data.*; save it as CSV in UTF-8"):
        find_truth(folder, ("judged", str(tmp_path / "quote.csv")))


def test_other_embeddings_than_were_judged(tmp_path: Path) -> None:
    folder, other = read_folder(write(tmp_path / "data")), read_folder(write(tmp_path / "other", new=1.1))
    write_sheet(folder, tmp_path / "j.csv", draw(folder, "cosine"))
    save(tmp_path / "j.csv", filled(rows_of(tmp_path / "j.csv")))
    with pytest.raises(InputError, match="is not to be judged with this folder and --distance"):
        find_truth(other, ("judged", str(tmp_path / "j.csv")))


def test_models_that_find_the_same_leave_nothing_to_judge(tmp_path: Path) -> None:
    same = np.random.default_rng(0).normal(size=(40, 6))
    rb.write_folder(tmp_path / "data", {"old": same, "new": same})
    with pytest.raises(InputError, match=r"both models find the same first 3 items for every query .*nothing to judge"):
        draw(read_folder(tmp_path / "data"), "cosine")


@pytest.mark.parametrize(
    ("old", "new", "code", "begins", "then"),
    [
        (
            2.0,
            0.7,
            0,
            "The new model is better by 50 judged queries: the difference of precision@3 is ",
            "Merge online",
        ),
        (0.7, 2.0, 11, "Do not upgrade: the new model is worse by 50 judged queries: ", "If you upgrade anyway, "),
        (1.2, 0.97, 10, "Do not upgrade on this evidence: 50 judged queries do not tell which", "If you upgrade, "),
    ],
)
def test_judgements_decide(
    old: float, new: float, code: int, begins: str, then: str, tmp_path: Path, command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """From the command that advises to judge, by the commands that it prints, to the verdict."""
    data, sheet = write(tmp_path / "data", old, new, 200, 0.7), tmp_path / "judgements.csv"
    monkeypatch.chdir(tmp_path)
    words = ["simulate", "--data", data, "--out", "out", "--methods", "rm_naive", "--points", "3"]
    ended, printed, _ = command(*words, "--json", "--exit-code")
    unjudged = json.loads(printed)
    assert ended == 10
    assert unjudged["verdict"].startswith("Judge 50 queries first (simulate --judge FILE, an hour’s work): nothing")
    assert "If you upgrade, " in unjudged["verdict"]
    assert unjudged["next"].endswith(" --judge judgements.csv")
    ended, printed, _ = command(*words, "--judge", "judgements.csv")
    assert "Judge the first 50 queries" in printed
    last = printed.strip().splitlines()[-1]
    assert last == f"then: ray-backfill simulate --data {data} --out out --methods rm_naive --points 3 " + (
        "--truth judged judgements.csv --overwrite"
    )
    save(sheet, filled(rows_of(sheet), 50))
    judged = sheet.read_text(encoding="utf-8")
    assert command(*words, "--judge", "judgements.csv").code == 2
    assert sheet.read_text(encoding="utf-8") == judged, "what was judged is never overwritten"
    words += ["--truth", "judged", "judgements.csv", "--overwrite"]
    ended, printed, _ = command(*words, "--json", "--exit-code")
    assert ended == code
    said = json.loads(printed)["verdict"]
    assert said.startswith(begins)
    assert f" {then}" in said


@pytest.mark.parametrize("own", [True, False])
def test_a_query_finds_its_own_part_and_not_itself(own: bool, tmp_path: Path) -> None:
    """Against plain numpy: the gallery queries itself, each item within its tenant, or the queries are items of it."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {name: rng.normal(size=(60, 5)) for name in ("old", "new")}
    columns |= {"id": np.arange(60), "tenant": np.arange(60) % 2}
    rb.write_folder(tmp_path / "data", columns, *([columns] if own else []))
    folder = read_folder(tmp_path / "data")
    drawn = draw(folder, "l2", filter_of(folder.gallery, folder.queries or folder.gallery, "tenant"))
    found = set(zip(drawn.query.tolist(), drawn.item.tolist(), drawn.sign.tolist(), strict=True))
    wanted = set()
    for query in range(60):
        first = {}
        for model in ("old", "new"):
            distances = np.linalg.norm(folder.gallery.vectors[model] - folder.gallery.vectors[model][query], axis=1)
            distances[(np.arange(60) % 2 != query % 2) | (np.arange(60) == query)] = np.inf
            first[model] = set(np.argsort(distances)[:DEPTH].tolist())
        wanted |= {(query, item, 1) for item in first["new"] - first["old"]}
        wanted |= {(query, item, -1) for item in first["old"] - first["new"]}
    assert found == wanted


def test_arrays_are_judged_by_their_row_numbers(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, label = np.random.default_rng(0), np.arange(300) % 20
    centre = rng.normal(size=(20, 8))
    for name, noise in (("old", 2.0), ("new", 0.5)):
        np.save(tmp_path / f"{name}.npy", centre[label] + noise * rng.normal(size=(300, 8)))
    monkeypatch.chdir(tmp_path)
    words = ["simulate", "--old-gallery", "old.npy", "--new-gallery", "new.npy", "--out", "out", "--points", "3"]
    words += ["--methods", "rm_naive"]
    assert command(*words, "--judge", "j.csv").code == 0
    head, *rows = rows_of(tmp_path / "j.csv")
    judged = [[*row[:4], str(int(label[int(row[0])] == label[int(row[2])]))] for row in rows]
    save(tmp_path / "j.csv", [head, *judged], ";")
    ended, printed, _ = command(*words, "--truth", "judged", "j.csv", "--exit-code", "--json")
    assert ended == 0
    assert json.loads(printed)["verdict"].startswith("The new model is better by 100 judged queries")


def test_a_sheet_that_is_there_is_refused_before_models_embed(tmp_path: Path, command: Command) -> None:
    (tmp_path / "texts.jsonl").write_text('{"id": "a", "text": "b"}\n')
    (sheet := tmp_path / "sheet.csv").write_text("judged for an hour")
    models = ("--old", "python:tests.power._models:old", "--new", "python:tests.power._models:new")
    out = tmp_path / "out"
    ended = command("simulate", *models, "--texts", tmp_path / "texts.jsonl", "--out", out, "--judge", sheet)
    assert ended.error.startswith(f"{sheet} is there already; read its judgements by --truth judged")
    assert sheet.read_text() == "judged for an hour"
    assert not out.exists()
