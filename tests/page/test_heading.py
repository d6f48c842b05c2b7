"""The top of a page, and paths without folders."""

import pytest

from ray_backfill.page.heading import INVENTED, date_of, name_of, top_notes, without_folders


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python /work/ray/__main__.py simulate --out demo", "python __main__.py simulate --out demo"),
        ("rb.simulate('/tmp/my runs/shop', ...)", "rb.simulate('shop', ...)"),
        ("--data=/a/b --out ~/runs/x/", "--data=b --out x"),
        ("/data", "data"),
        ("no file at /x/y.parquet: see (/p/q)", "no file at y.parquet: see (q)"),
        (r"C:\Users\me\run and 'D:\my run\x'", "run and 'x'"),
        ("50 m/s, https://a.b/c, either/or, mAP / CMC", "50 m/s, https://a.b/c, either/or, mAP / CMC"),
        ("./runs/x ../y/z runs/a", "./runs/x ../y/z runs/a"),
    ],
)
def test_absolute_paths_are_shortened_to_their_last_part(text: str, expected: str) -> None:
    assert without_folders(text) == expected


def test_the_data_set_has_its_own_name_or_that_of_its_folder() -> None:
    assert name_of({"name": "Landmarks", "path": "/x/y"}) == "Landmarks"
    assert name_of({"path": "/home/me/runs/demo/embeddings"}) == "demo"
    assert name_of({"name": "embeddings", "path": "/home/me/runs/demo/embeddings"}) == "demo"
    assert name_of({"path": "/home/me/shop"}) == "shop"
    assert name_of({}) == ""


def test_dates() -> None:
    assert date_of("2026-11-22T10:06:32+00:00") == "2026-11-22 10:06 UTC"
    assert date_of("") == ""


def test_that_data_are_invented_is_said_once() -> None:
    assert top_notes([INVENTED, "see /a/b"]) == (INVENTED, ["see b"])
    assert top_notes(["few"]) == ("", ["few"])
