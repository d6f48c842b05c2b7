"""Writes a page about the published experiments: recipes, expected results, and details that the papers omit.

python -m reproduction.published_page    writes docs/published.md
"""

from pathlib import Path

from ray_backfill.core.stages import write_whole
from ray_backfill.page.numbers import NOTHING
from ray_backfill.recipes.table import PUBLISHED
from reproduction import silent
from reproduction.markdown import PageTable, table_lines
from reproduction.page_tables import as_printed
from reproduction.published import CURVES, TABLES, PublishedTable

PAGE = Path(__file__).parents[1] / "docs" / "published.md"  # of the checkout: this command is for its maintainers
_HEAD = """# The published experiments

This page was written by `python -m reproduction.published_page`; do not edit it.

    ray-backfill simulate --recipe NAME --data-root PATH

runs an experiment with the papers' hyper-parameters and protocol; `--dry-run` counts its operations first. On four
A100 add `--workers.number 4 --workers.cpus 8 --actors.number 4 --actors.cpus 8`. We have not run any of them.

RM: Seo et al., *Metric Compatible Training for Online Backfilling in Large-Scale Retrieval*, 2025. FF: Jaeckle et al.,
*FastFill: Efficient Compatible Model Update*, ICLR 2023."""
_EXPECTED = """## What to expect

AUC mAP / AUC CMC@1 / gain as printed, in per cent. FF takes the plain mean of its points for the AUC, so compare it
with `auc_mean` of `summary.parquet`."""


def page() -> str:
    """The page as Markdown."""
    parts = [
        _HEAD,
        "## Recipes",
        _recipes(),
        "## Details that the papers omit, or where this project differs",
        f"All recipes:\n\n{_listed(silent.IN_ALL)}",
        *(f"Recipes of {name}:\n\n{_listed(sentences)}" for name, sentences in silent.BY_PAPER.items()),
        _EXPECTED,
        *(_figures(table) for table in TABLES),
        "### Curves and text",
        _curves(),
    ]
    return "\n\n".join(parts) + "\n"


def _recipes() -> str:
    rows = (
        (f"`{row.name}`", row.description, " ".join(silent.BY_RECIPE.get(row.name, ())) or NOTHING) for row in PUBLISHED
    )
    return table_lines(PageTable(("recipe", "description", "details that the paper omits"), tuple(rows)))


def _curves() -> str:
    rows = ((f"`{curves.recipe}`", curves.source, curves.words) for curves in CURVES)
    return table_lines(PageTable(("recipe", "source", "result"), tuple(rows)))


def _listed(sentences: tuple[str, ...]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _figures(table: PublishedTable) -> str:
    header = ("", "method", "order", *(f"{column.data_set}: `{column.recipe}`" for column in table.columns))
    rows = (
        (e.name, f"`{e.method}`", e.order or NOTHING, *(as_printed(cell, table.digits) for cell in e.cells))
        for e in table.rows
    )
    return f"### {table.source}\n\n{table.setting}.\n\n{table_lines(PageTable(header, tuple(rows)))}"


if __name__ == "__main__":
    write_whole(PAGE, lambda temporary: temporary.write_text(page(), encoding="utf-8"))
    print(PAGE)
