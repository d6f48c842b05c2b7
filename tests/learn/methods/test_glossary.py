"""Every method explains its own words, which reports print."""

import pytest

from ray_backfill.learn.methods import all_methods


@pytest.mark.parametrize("name", sorted(set(all_methods()) - {"old", "new"}))
def test_a_method_explains_itself(name: str) -> None:
    glossary = all_methods()[name].glossary
    assert glossary
    assert all(meaning.endswith(".") for meaning in glossary.values())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rm_naive", {"RM"}),
        ("rm", {"RM", "MCL", "psi", "rho"}),
        ("mcl", {"RM", "MCL", "psi"}),
        ("rqt", {"RM", "RQT", "psi"}),
        ("cl_s", {"RM", "CL-S", "psi"}),
        ("fct", {"FCT", "h"}),
        ("fastfill", {"FastFill", "h", "sigma"}),
    ],
)
def test_abbreviations_in_titles_are_explained(name: str, words: set[str]) -> None:
    assert set(all_methods()[name].glossary) == words
