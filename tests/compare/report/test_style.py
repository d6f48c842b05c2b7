"""Colours of the pages: text is readable on its background in light, dark and printed pages (WCAG 2.1, 4.5 to 1)."""

import re
from pathlib import Path

import pytest

import ray_backfill.page
from ray_backfill.compare.report.html import DARKEST

STYLE = (Path(ray_backfill.page.__file__).parent / "style.css.jinja").read_text()
LIGHT, DARK, PRINT = (
    dict(re.findall(r"--([\w-]+): ([^;]+);", block)) for block in re.findall(r":root {(.*?)}", STYLE, re.DOTALL)
)
SCHEMES = {"light": LIGHT, "dark": LIGHT | DARK, "print": LIGHT | PRINT}
TEXTS = [(text, ground) for text in ("ink", "faint", "accent", "yes", "no") for ground in ("paper", "wash")]
TEXTS += [("ink", "warn"), ("ink", "bar"), ("faint", "bar")]

Colour = tuple[float, float, float]


def parsed(colour: str) -> Colour:
    digits = colour.strip().removeprefix("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    red, green, blue = (int(digits[i : i + 2], 16) for i in (0, 2, 4))
    return red, green, blue


def contrast(one: Colour, other: Colour) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: Colour) -> float:
    shares = [value / 255 for value in colour]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_formula_is_wcags() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast(parsed("#767676"), parsed("#fff")) == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("text", "ground"), TEXTS)
def test_texts_are_readable(scheme: str, text: str, ground: str) -> None:
    colours = SCHEMES[scheme]
    assert contrast(parsed(colours[text]), parsed(colours[ground])) >= 4.5


@pytest.mark.parametrize("scheme", SCHEMES)
def test_numbers_in_the_darkest_cell_of_a_grid_are_readable(scheme: str) -> None:
    colours = SCHEMES[scheme]
    heat = [float(value) for value in colours["heat"].split(",")]
    red, green, blue = (DARKEST * h + (1 - DARKEST) * p for h, p in zip(heat, parsed(colours["paper"]), strict=True))
    assert contrast(parsed(colours["ink"]), (red, green, blue)) >= 4.5


@pytest.mark.parametrize("scheme", SCHEMES)
def test_lines_stand_out_from_the_paper(scheme: str) -> None:
    colours = SCHEMES[scheme]
    for index in range(8):
        assert contrast(parsed(colours[f"c{index}"]), parsed(colours["paper"])) >= 3, f"--c{index}"
