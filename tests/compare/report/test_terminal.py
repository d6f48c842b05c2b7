"""The table in the terminal shows the hand-made numbers."""

from pathlib import Path

import pytest

from ray_backfill.compare.report import print_table, read_results
from ray_backfill.compare.report.terminal import overview
from ray_backfill.compare.report.verdict import export_command, next_command, verdict
from tests.compare.report import folder as folders
from tests.compare.report.folder import METHODS, manifest_of, many_methods, write_results


def printed(folder: Path, width: int = 160) -> str:
    return folders.printed(lambda console: print_table(folder, console), width)


def test_overview_in_per_cent(tmp_path: Path) -> None:
    frame = overview(read_results(write_results(tmp_path)))
    assert list(frame.columns) == (
        ["method", "average", "gain", "start", "end", "largest fall", "lost", "average CMC@1"]
    )
    assert frame.iloc[3].tolist() == ["full RM", "53.0", "115 %", "40.0 ✓", "62.0 ✓", "0.0 ✓", "6.2", "73.0"]
    assert frame.iloc[2].tolist() == ["RM naive", "34.0", "20 %", "30.0 ✓", "50.0 ✓", "2.0 ✗", "15.0", "54.0"]
    assert frame.iloc[4].tolist() == ["BCT", "35.0", "25 %", "25.0 ✗", "45.0 ✗", "0.0 ✓", "–", "55.0"]


def test_the_terminal_prints_rows_verdict_and_explanation(tmp_path: Path) -> None:
    text = printed(write_results(tmp_path))
    row = next(line for line in text.splitlines() if "│ full RM" in line)
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == (
        ["full RM", "53.0", "115 %", "40.0 ✓", "62.0 ✓", "0.0 ✓", "6.2"]
    )
    assert "Merge online with full RM: users get 23.0 points" in text
    assert "gain: the share of the upgrade's improvement" in text


def test_several_orders_get_a_column(tmp_path: Path) -> None:
    frame = overview(read_results(write_results(tmp_path, orders=("score", "random"))))
    assert frame["order"].tolist() == ["–", "–", "score", "score", "score", "random", "random", "random"]
    assert "random" in printed(tmp_path)


def test_titles_are_not_read_as_markup(tmp_path: Path) -> None:
    title = "[red]me[/red]"
    write_results(tmp_path, methods=METHODS | {"rm": (title, *METHODS["rm"][1:])})
    assert title in printed(tmp_path)


def test_eighty_columns_hold_whole_rows(tmp_path: Path) -> None:
    title = "least squares, gallery"
    write_results(tmp_path, methods=METHODS | {"rm": (title, *METHODS["rm"][1:])})
    lines = printed(tmp_path, width=80).splitlines()
    assert f"{title} 53.0 115 % 40.0 ✓ 62.0 ✓ 0.0 ✓ 6.2" in [" ".join(line.split()) for line in lines]
    assert all(len(line) <= 80 for line in lines)


def test_of_many_rows_each_method_is_shown_once(tmp_path: Path) -> None:
    orders = ("oracle_loss", "score", "random")
    text = printed(write_results(tmp_path, many_methods(12), orders, merges=("raw", "csls")))
    rows = [[c.strip() for c in line.strip("│ ").split("│")] for line in text.splitlines() if line.startswith("│")]
    assert len(rows) == 2 + 15
    assert [row[0] for row in rows[:5]] == ["old", "new", "full RM", "BCT", "RM naive"]
    assert rows[2][:4] == ["full RM", "score", "raw", "52.0"]
    assert "Each method in its best order and merge. All 92 rows: report.html, summary.parquet" in text
    assert "†" not in text


def test_many_methods_in_one_order_are_sorted_and_nothing_is_missing(tmp_path: Path) -> None:
    text = printed(write_results(tmp_path, many_methods(30)))
    assert "All " not in text
    assert text.index("BCT") < text.index("RM naive") < text.index("method 0") < text.index("method 29")


def test_an_oracle_order_is_marked(tmp_path: Path) -> None:
    text = printed(write_results(tmp_path, orders=("score", "oracle_loss")))
    assert "oracle_loss †" in text
    assert "† An upper bound" in text
    alone = printed(write_results(tmp_path, orders=("oracle_loss",)))
    assert "oracle_loss † order" in alone
    assert "Only oracle orders were compared" in alone
    assert "†" not in printed(write_results(tmp_path))


def test_the_reason_stands_before_dozens_of_names(tmp_path: Path) -> None:
    reasons = {f"m{i}": "needs labels" for i in range(40)} | {"given": "no column order_score"}
    left_out = [{"kind": "method", "name": name, "reason": reason} for name, reason in reasons.items()]
    lines = printed(write_results(tmp_path, left_out=left_out)).splitlines()
    (many,) = [line for line in lines if "needs labels" in line]
    assert many.strip().startswith("left out: 40 (needs labels): m0, m1, ")
    assert "left out: given (no column order_score)" in "\n".join(lines)


@pytest.mark.parametrize(
    ("given", "then"),
    {
        "simulate --data shop": "drill --data shop --orders score --merges raw --live.method rm",
        "simulate --data='my shop' --out runs/a --methods rm bct --json --metrics mAP MRR CMC@1": (
            "drill --data 'my shop' --out runs/a --metrics mAP CMC@1 --orders score --merges raw --live.method rm"
        ),
        "simulate --truth qrels q.txt --data shop --device cuda --seed 3": (
            "drill --truth qrels q.txt --data shop --seed 3 --orders score --merges raw --live.method rm"
        ),
        "simulate --scale full": "",
        "simulate --old-gallery a.npy --new-gallery b.npy": "",
        "simulate --data shop --filter colour": "",
        "report runs/shop": "",
    }.items(),
)
def test_the_next_command_has_the_users_own_arguments(tmp_path: Path, given: str, then: str) -> None:
    results = read_results(write_results(tmp_path, command=f"ray-backfill {given}"))
    assert next_command(results) == f"ray-backfill {then}" * bool(then)


def test_the_export_of_the_advised_method_is_named_if_the_decision_is_go(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "run" / "results", command="ray-backfill simulate --data shop")
    run = tmp_path / "run"
    words = f"ray-backfill export {run} --method rm --merge raw --order score --to {run}/upgrade"
    assert export_command(read_results(folder), folder) == words
    said = " ".join(printed(folder).split())
    assert "to serve it: " in said
    assert words.removeprefix("ray-backfill ") in said, "by whatever started this process"
    alone = write_results(tmp_path / "oracle", orders=("oracle_loss",))
    assert "to serve it" not in printed(alone), "nobody has this order before the backfill"


def test_a_plan_is_the_next_step_unless_the_new_model_is_worse_or_judges_itself(tmp_path: Path) -> None:
    better = " ".join(printed(write_results(tmp_path / "shop" / "results")).split())
    assert f"plan {tmp_path}/shop --fleet fleet.yaml" in better
    worse = METHODS | {"new": ("new", (0.20, 0.20, 0.20), 0.20, 0.20, 1.0, *METHODS["new"][5:])}
    assert "--fleet" not in printed(write_results(tmp_path / "worse", methods=worse))
    with manifest_of(tmp_path / "shop" / "results") as manifest:
        manifest["data"]["truth"] = {"name": "new-top1", "is_retention": True, "k": 1}
    assert "--fleet" not in printed(tmp_path / "shop" / "results"), "plan refuses it"


def test_what_no_drill_can_run_is_no_next_command(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path, merges=("rrf",), command="ray-backfill simulate --data shop"))
    assert verdict(results).startswith("Merge online with full RM")
    assert next_command(results) == ""
