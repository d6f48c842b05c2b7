"""Charts as SVG: lines with their keys, the page's own colours and fonts, nothing that another chart could touch."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from ray_backfill.page.charts import REFERENCE_STYLES, Chart, DrawnCurve, Interval, numbered_style, range_of, values_at
from ray_backfill.page.drawing import box_of, chart_svg, swatch_svg

X = np.linspace(0, 100, 101)


def chart(title: str = "mAP", is_shown: bool = True) -> Chart:
    curves = (
        DrawnCurve("rm", "full RM", "50.0", numbered_style(0), X, X / 2, Interval(X[::50], X[::50] / 3, X[::50])),
        DrawnCurve("weak", "weak", "1.0", numbered_style(1), X, 0 * X, is_shown=is_shown),
        DrawnCurve("offline", "offline", "0.0", REFERENCE_STYLES["offline"], X, 80.0 * (X == 100), is_step=True),
    )
    return Chart(title, "mAP (%)", "AUC", curves, y_range=(0.0, 80.0))


def test_every_line_has_its_key_and_its_path() -> None:
    root = ElementTree.fromstring(chart_svg(chart(is_shown=False), "a", "what it shows"))
    assert root.attrib == {"viewBox": "0 0 640 366", "role": "img", "aria-label": "what it shows"}
    groups = {group.get("data-key"): group.get("class") for group in root.iter("g") if group.get("data-key")}
    assert groups == {"rm": "line", "weak": "line off", "offline": "line"}
    bands = [group.get("data-key") for group in root.iter("g") if "band" in group.get("class", "")]
    assert bands == ["rm"]
    rm = next(group for group in root.iter("g") if group.get("class") == "line" and group.get("data-key") == "rm")
    path = next(rm.iter("path"))
    ends = [float(number) for number in re.findall(r"[\d.]+", path.get("d", ""))]
    left, right, top, bottom = box_of(chart())
    # From (0, 0) to (100, 50) of 80.
    assert ends[:2] == pytest.approx([left, bottom], abs=0.1)
    assert ends[-2:] == pytest.approx([right, bottom - (bottom - top) * 50 / 80], abs=0.1)


def test_offline_goes_straight_up_at_the_end() -> None:
    root = ElementTree.fromstring(chart_svg(chart(), "a", ""))
    group = next(group for group in root.iter("g") if group.get("data-key") == "offline")
    numbers = [float(number) for number in re.findall(r"[\d.]+", next(group.iter("path")).get("d", ""))]
    points = list(zip(numbers[::2], numbers[1::2], strict=True))
    left, right, top, bottom = box_of(chart())
    assert points[0] == pytest.approx((left, bottom), abs=0.1)
    assert points[-1] == pytest.approx((right, top), abs=0.1)
    assert {x for x, y in points if y < bottom - 0.1} == {right}


def test_colours_and_fonts_are_the_pages() -> None:
    svg = chart_svg(chart(), "a", "") + swatch_svg(numbered_style(0))
    assert not re.findall(r"#[0-9a-f]{6}", svg)
    assert "var(--c0)" in svg
    assert "font" not in svg
    assert "http" not in svg


def test_drawings_of_a_page_do_not_share_ids_and_are_reproducible() -> None:
    one, same, other = (chart_svg(chart(), name, "") for name in ("a", "a", "b"))
    assert one == same
    ids = [re.findall(r' id="(\w+)"', svg) for svg in (one, other)]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])


def test_texts_of_users_are_escaped() -> None:
    hostile = "</svg><script>$x_{"
    curves = (DrawnCurve(hostile, hostile, "", numbered_style(0), X, X),)
    svg = chart_svg(Chart(hostile, hostile, "", curves), "a", hostile)
    assert "<script" not in svg
    assert ElementTree.fromstring(svg).get("aria-label") == hostile


@pytest.mark.parametrize("style", [numbered_style(i) for i in range(12)] + list(REFERENCE_STYLES.values()))
def test_a_swatch_shows_line_and_marker(style: object) -> None:
    root = ElementTree.fromstring(swatch_svg(style))  # type: ignore[arg-type]
    assert len(root.findall("path")) == (2 if style.marker else 1)  # type: ignore[attr-defined]


def test_values_are_told_only_where_there_are_any() -> None:
    curve = DrawnCurve("a", "a", "", numbered_style(0), np.array([0.0, 10.0]), np.array([1.0, np.nan]))
    told = values_at(curve, np.array([0.0, 5.0, 10.0]))
    assert told[0] == 1.0
    assert np.isnan(told[1:]).all()
    assert range_of([curve]) == (0.0, 2.0)
    assert range_of([]) == (0.0, 1.0)
