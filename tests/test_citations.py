"""Citations name equations, sections, tables and figures that the papers have.

The lists are the tables of contents of the papers that this project rests on. FastFill has no eq. 7 and no section 4.3,
which docstrings cited for a year.
"""

import re
from pathlib import Path

from ray_backfill.engine.orders import ORDERS
from ray_backfill.learn.methods import all_methods

FOLDERS = [Path(__file__).parents[1] / name for name in ("ray_backfill", "reproduction")]
FASTFILL = {
    "eq.": {*map(str, range(1, 7))},
    "section": {*map(str, range(1, 10)), "4.1", "4.2", "5.1", "5.2", "5.3"},
    "appendix": {*"ABCDEF", "A.1", "A.2", "B.1", "B.2", "B.3", "C.1", "C.2", "C.3", "C.4"},
    "table": {*map(str, range(1, 8))},
    "figure": {*map(str, range(1, 16)), "2a", "2b", "2c"},
}
RANK_MERGE = {
    "eq.": {*map(str, range(1, 15))},
    "section": {*map(str, range(1, 7)), *("3.1", "3.2", "3.3", "4.1", "4.2", "4.3", "5.1", "5.2", "5.3")},
    "appendix": {*"AB", "B.1", "B.2", "B.3"},
    "table": {"1", "A2"},
    "figure": {*map(str, range(1, 10)), "7a", "7b", "8a", "8b", "9a", "9b", "A10", "A11"},
}
PAPERS = {"FastFill": FASTFILL, "FF": FASTFILL, "rank merge": RANK_MERGE, "RM": RANK_MERGE}
# Files about one paper cite it without its name.
OF_ONE_PAPER = {"rank_merge.py": RANK_MERGE, "fastfill.py": FASTFILL}

_NUMBER = r"[A-Z]?\.?\d+(?:\.\d+)?[a-c]?|[A-F](?:\.\d)?(?![\w.])"
_PLACE = rf"(eq\.|sections?|appendix|tables?|figures?) ((?:{_NUMBER})(?:(?:-| to |, | and )(?:{_NUMBER}))*)"
_PLACES = rf"{_PLACE}(?:(?:,| and|,? and) (?:the authors' code, )?{_PLACE})*"
_NAMED = re.compile(rf"\b(FastFill|FF|rank merge|RM)(?:'s|\",)?(?: \d{{4}},)?(?:, (?:2023, |2025, )?| )({_PLACES})")


def cited(text: str) -> list[tuple[str, str]]:
    """Every (kind, number) of a text, ranges by their ends."""
    text = " ".join(text.split())
    return [
        (kind.removesuffix("s"), number)
        for kind, numbers in re.findall(_PLACE, text)
        for number in re.findall(_NUMBER, numbers)
    ]


def named(text: str) -> list[tuple[str, str, str]]:
    """Every (paper, kind, number) of a text."""
    found = _NAMED.finditer(" ".join(text.split()))
    return [(match[1], kind, number) for match in found for kind, number in cited(match[2])]


def faults() -> list[str]:
    """Citations of places that a paper does not have."""
    wrong, right = [], 0
    for file in sorted(file for folder in FOLDERS for file in folder.rglob("*.py")):
        text = file.read_text()
        found = [(PAPERS[paper], kind, number) for paper, kind, number in named(text)]
        if file.name in OF_ONE_PAPER:
            found += [(OF_ONE_PAPER[file.name], kind, number) for kind, number in cited(text)]
        wrong += [f"{file.name}: {kind} {number}" for contents, kind, number in found if number not in contents[kind]]
        right += len(found)
    assert right > 100, "the papers are cited more often than that"
    return wrong


def test_what_is_cited_exists() -> None:
    assert faults() == []


def test_wrong_citations_are_seen() -> None:
    assert named("Source: FastFill, eq. 3-7.") == [("FastFill", "eq.", "3"), ("FastFill", "eq.", "7")]
    assert named("FastFill, appendix A.2 and\nsection 4.3") == [
        ("FastFill", "appendix", "A.2"),
        ("FastFill", "section", "4.3"),
    ]
    assert cited("eq. 7: l2 + disc") == [("eq.", "7")]
    assert named("RM, tables 1 and A2") == [("RM", "table", "1"), ("RM", "table", "A2")]


def test_fastfills_losses_and_order_cite_their_equations() -> None:
    """l2 + disc is eq. 3, l2 with uncertainty eq. 4, both eq. 5; the order and the cheating one are in section 4.2."""
    source = {name: method.source for name, method in all_methods().items()}
    assert "eq. 5" in source["fastfill"]
    assert "eq. 3" in source["fastfill_l2_disc"]
    assert "eq. 4" in source["fastfill_l2_u"]
    orders = {order.name: order.source for order in ORDERS}
    assert "section 4.2" in orders["sigma"]
    assert "section 4.2" in orders["oracle_loss"]
