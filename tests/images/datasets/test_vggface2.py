from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets.folders import VGGFace2Settings as Settings
from ray_backfill.images.datasets.folders import open_vggface2 as open_images
from tests.images.datasets._pictures import names, write_tree
from tests.images.datasets._published_more import META_HEADER, flat, meta_lines, small_vggface, vggface


def test_people_and_their_gender(tmp_path: Path) -> None:
    source = open_images(small_vggface(tmp_path))
    assert source.splits == ("train", "gallery")
    train, gallery = source.items("train"), source.items("gallery")
    assert train.labels_N.tolist() == [2, 2, 2, 3, 3, 3, 5, 5, 5]
    assert train.groups_N is not None
    assert train.groups_N.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert gallery.labels_N.tolist() == [1] * 6 + [9] * 6
    assert gallery.groups_N is not None
    assert gallery.groups_N.tolist() == [1] * 6 + [0] * 6
    assert names(source, "gallery")[0] == "test/n000001/0001_01.jpg"


def people(root: Path, counts: dict[str, int]) -> Settings:
    """Only names: nothing here is decoded."""
    images = {f"test/{person}/{i:04d}_01.jpg": b"" for person, count in counts.items() for i in range(count)}
    write_tree(root, images | {"train/n000500/0001_01.jpg": b""})
    write_tree(root, {"identity_meta.csv": meta_lines(dict.fromkeys([*counts, "n000500"], "f"))})
    return Settings(str(root))


def test_fifty_images_of_each_person_are_drawn(tmp_path: Path) -> None:
    settings = people(tmp_path, {"n000001": 120, "n000002": 120, "n000003": 50, "n000004": 7})
    source = open_images(settings)
    labels = source.items("gallery").labels_N
    assert np.bincount(labels).tolist() == [0, 50, 50, 50, 7]  # who has fewer keeps all
    first = names(source, "gallery")
    assert first == sorted(first)
    one, two = ([name[-11:] for name in first if person in name] for person in ("n000001", "n000002"))
    assert one != two, "each person's draw is a draw of its own"
    assert one != [f"{i:04d}_01.jpg" for i in range(50)]
    assert names(open_images(settings), "gallery") == first
    assert names(open_images(replace(settings, seed=1)), "gallery") != first
    assert len(open_images(replace(settings, per_class=60)).items("gallery")) == 60 + 60 + 50 + 7


def test_a_persons_draw_does_not_depend_on_others(tmp_path: Path) -> None:
    of_two = names(open_images(people(tmp_path / "a", {"n000004": 90, "n000007": 90})), "gallery")
    of_three = names(open_images(people(tmp_path / "b", {"n000001": 70, "n000004": 90, "n000007": 90})), "gallery")
    assert [name for name in of_three if "n000001" not in name] == of_two


def test_the_draw_never_changes(tmp_path: Path) -> None:
    """Written down by hand: the sample is "random but fixed"."""
    source = open_images(replace(people(tmp_path, {"n000001": 12, "n000002": 12}), per_class=4))
    assert [name[5:17] for name in names(source, "gallery")] == [
        *(f"n000001/{number}" for number in ("0001", "0002", "0004", "0005")),
        *(f"n000002/{number}" for number in ("0001", "0002", "0005", "0009")),
    ]


def test_lines_with_traps(tmp_path: Path) -> None:
    """Windows line ends, a byte order mark, commas in names with and without quotes, letters outside of ASCII."""
    settings = small_vggface(tmp_path)
    before = open_images(settings)
    lines = [
        META_HEADER,
        'n000001, "Sammy_Davis,_Jr.",424,0, m,',
        "n000002, Sammy_Davis,_Jr.,424,1, f",
        'n000003, "Émile_Zola" ,315,1, m,',
        "",
        "n000005,Somebody,205,1,m,,",
        'n000009, "A ""nick"" name",10,0, f',
    ]
    for data in ("\r\n".join(lines).encode("utf-8-sig"), "\n".join(lines).encode("latin-1")):
        (tmp_path / "identity_meta.csv").write_bytes(data)
        np.testing.assert_array_equal(open_images(settings).items("train").groups_N, before.items("train").groups_N)
        assert open_images(settings).fingerprint() == before.fingerprint()


def test_other_places(tmp_path: Path) -> None:
    source = open_images(small_vggface(tmp_path / "a"))
    small_vggface(tmp_path / "b" / "data")
    (tmp_path / "b" / "meta").mkdir()
    (tmp_path / "b" / "data" / "identity_meta.csv").rename(tmp_path / "b" / "meta" / "identity_meta.csv")
    other = open_images(Settings(str(tmp_path / "b"), image_size=8))
    np.testing.assert_array_equal(other.items("gallery").groups_N, source.items("gallery").groups_N)
    assert names(other, "train") == names(source, "train")


def test_the_fingerprint_follows_the_genders(tmp_path: Path) -> None:
    settings = vggface(tmp_path, {"train/n000002/0001_01.jpg": 1, "test/n000001/0001_01.jpg": 2}, PAIR)
    before = open_images(settings).fingerprint()
    (tmp_path / "identity_meta.csv").write_bytes(meta_lines(PAIR | {"n000002": "m"}))
    assert open_images(settings).fingerprint() != before


PAIR = {"n000001": "f", "n000002": "f"}


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (
            meta_lines({"n000001": "f"}),
            r"n000002, the person of the folder train/n000002, is not in .*identity_meta\.csv",
        ),
        (meta_lines(PAIR) + b'n000001, "X",3,1, f,\n', "n000001 has two lines"),
        (meta_lines(PAIR | {"n000002": "x"}), "gender of n000002 must be f or m, not 'x'"),
        (META_HEADER.encode() + b"\nn000001, f\n", "gender of n000001 must be f or m, not ''"),
        (b"n000001, X,3,1, f\n", "must begin with the line 'Class_ID, Name, Sample_Num, Flag, Gender'"),
        (b"", "must begin with the line"),
    ],
)
def test_tables_that_do_not_fit(tmp_path: Path, table: bytes, complaint: str) -> None:
    settings = vggface(tmp_path, {"train/n000002/0001_01.jpg": 1, "test/n000001/0001_01.jpg": 2}, PAIR)
    (tmp_path / "identity_meta.csv").write_bytes(table)
    with pytest.raises(InputError, match=complaint):
        open_images(settings)


def test_a_folder_that_is_not_the_data_set(tmp_path: Path) -> None:
    write_tree(tmp_path, {"train/n000002/0001_01.jpg": flat(1)})
    with pytest.raises(InputError, match=r"no folder test .* How the folder must look: train/n000002/0001_01\.jpg"):
        open_images(Settings(str(tmp_path)))
    write_tree(tmp_path, {"test/Mary/0001_01.jpg": flat(1)})
    with pytest.raises(InputError, match=r"no file identity_meta\.csv"):
        open_images(Settings(str(tmp_path)))
    write_tree(tmp_path, {"identity_meta.csv": meta_lines(PAIR)})
    with pytest.raises(InputError, match="'test/Mary' is not a person's folder"):
        open_images(Settings(str(tmp_path)))


def test_all_images_of_those_who_train_are_there(tmp_path: Path) -> None:
    settings = people(tmp_path, {"n000001": 3})
    write_tree(tmp_path, {f"train/n000500/{i:04d}_01.jpg": b"" for i in range(1, 61)})
    source = open_images(settings)
    assert names(source, "train") == [f"train/n000500/{i:04d}_01.jpg" for i in range(1, 61)]


def test_a_table_of_another_kind(tmp_path: Path) -> None:
    settings = people(tmp_path, {"n000001": 3})
    (tmp_path / "identity_meta.csv").write_text("x" * 200_000)
    with pytest.raises(InputError, match=r"identity_meta\.csv cannot be read \(field larger"):
        open_images(settings)
