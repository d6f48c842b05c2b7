"""``python -m reproduction.pipeline``: does a pipeline change which method to take? -> docs/results/pipeline.md.

    python -m reproduction.pipeline --data-root PATH --out runs/pipeline --page docs/results/pipeline.md

Upgrades of two collections of text with judged queries, compared by the vectors alone and behind services. The services
were fixed before the first run. Finished comparisons are not done again.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa

from ray_backfill.cli import absolute, run_job
from ray_backfill.cli.options import Options
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.report import read_data
from ray_backfill.compare.report.verdict import decide, find_situation
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.core.outcome import Decision
from ray_backfill.core.progress import say
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.schema import read_checked
from ray_backfill.core.stages import begin_stage, finish_stage, read_json
from ray_backfill.data.columns import part_files
from ray_backfill.data.write import write_parquet
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context
from reproduction.atlas.collections import COLLECTIONS
from reproduction.atlas.embeddings import embed_collection, join
from reproduction.atlas.models import models_of

TEXTS = ("cranfield", "nfcorpus")
PAIRS = (("glove", "minilm"), ("static", "minilm"), ("wordllama-64", "wordllama-256"), ("wordllama-256", "minilm"))
METHODS = ("rm_naive", "relaxed_gallery", "ridge_gallery", "slerp", "fct", "instant", "offline")
MERGES = ("raw", "csls", "zscore", "quantile")
# Name -> service.yaml. The first one only cuts.
SERVICES = {
    "100 of each partition": "retrieve: 100",
    "BM25, rrf": "retrieve: 100\nhybrid: {list: bm25, fusion: rrf}",
    "BM25, rrf, no merge": "retrieve: 100\nhybrid: {list: bm25, fusion: rrf, lists: separate}",
    "BM25, relativeScoreFusion": "retrieve: 100\nhybrid: {list: bm25, fusion: relativeScoreFusion}",
    "BM25, dbsf": "retrieve: 100\nhybrid: {list: bm25, fusion: dbsf}",
}
METRIC = "nDCG@10"
_SITUATIONS = {
    "NOT_SHOWN": "no gain is shown",
    "NOT_MIXED": "switch at the end",
    "EQUAL": "nothing",
    "WORSE": "no upgrade",
}


@dataclass(frozen=True, kw_only=True)
class PipelineJob:
    """Decisions behind pipelines."""

    data_root: Path
    """Folder of the collections."""
    out: Path = Path("runs/pipeline")
    """Folder of embeddings, maps and results; that of an atlas has the embeddings already."""
    page: Path | None = None
    """File of the page; None: pipeline.md in the folder of the run."""


def run_pipelines(job: PipelineJob) -> Path:
    """Make what is missing, and write the page; returns its path."""
    data, out = absolute("--data-root", job.data_root), job.out.absolute()
    services = out / "services"
    services.mkdir(parents=True, exist_ok=True)
    rows = []
    for collection in COLLECTIONS:
        if collection.name not in TEXTS:
            continue
        known = models_of(collection.modality)
        folders = embed_collection(
            collection, {name: known[name] for name in known if name in {*sum(PAIRS, ())}}, data, out
        )
        for old, new in PAIRS:
            name, place = f"{old}_{new}", out / collection.name
            joined = join(place / "upgrades" / name, folders[old], folders[new], 1950)
            texts = _with_texts(place / "texts" / name, joined, place / "items")
            for number, (service, content) in enumerate({"": "", **SERVICES}.items()):
                file = services / f"{number}.yaml"
                file.write_text(content, encoding="utf-8")
                say(f"{collection.name}, {old} to {new}: {service or 'vectors alone'}")
                how = Evaluation(METHODS, ("random",), MERGES, metrics=(METRIC,), service=file if service else None)
                context = Context(place / "behind" / name, command="reproduction.pipeline", overwrite=True)
                results = read_data(
                    evaluate_folder(texts, how, FitSettings.of_folder(), context, results=f"results_{number}")
                )
                best = results.best()
                facts = {"collection": collection.name, "old": old, "new": new, "service": service}
                ends = {end: results.reference(end) for end in ("old", "new")}
                rows += [
                    facts
                    | {
                        "method": row.method, "merge": row.merge, "auc": 100 * row.auc,
                        "is_best": row is best and decide(results) is Decision.GO,
                        "situation": find_situation(results).name,
                        **{f"{end}_auc": 100 * reference.auc for end, reference in ends.items() if reference},
                    }
                    for row in results.rows
                    if row.metric == METRIC and not row.is_reference
                ]  # fmt: skip
    page = (job.page or out / "pipeline.md").absolute()
    page.write_text(_page(pd.DataFrame(rows)), encoding="utf-8")
    return page


def _with_texts(to: Path, joined: Path, items: Path) -> Path:
    """A copy of an upgrade's folder with the texts of gallery and queries."""
    key = RunKey("texts", {}, {"joined": read_json(joined / "manifest.json")["settings"]})
    if begin_stage(to, key, overwrite=True):
        return to
    for split in ("gallery", "queries", "train"):
        table = read_checked(joined / f"{split}.parquet").replace_schema_metadata()
        if split != "train":
            source = pa.concat_tables(
                [read_checked(part).replace_schema_metadata() for part in part_files(items / f"{split}.parquet")]
            )
            of_id = dict(zip(source["id"].to_pylist(), source["text"].to_pylist(), strict=True))
            table = table.append_column("text", pa.array([of_id[item] for item in table["id"].to_pylist()]))
        write_parquet(to / f"{split}.parquet", table)
    finish_stage(to, {})
    return to


def _page(rows: pd.DataFrame) -> str:
    """Tables of decisions, and of what the plain decision costs behind each service."""
    keys = ["collection", "old", "new"]
    lines = [
        "# Decisions behind a pipeline", "",
        f"What the comparison recommends by the vectors alone, and behind services, for {METRIC} averaged over the "
        "backfill. *Loss*: points that the method and merge recommended by the vectors alone serve less in that "
        "service than what is recommended there.", "",
        "    python -m reproduction.pipeline --data-root PATH --out runs/pipeline --page docs/results/pipeline.md", "",
        "Services, fixed before the first run:", "",
        *(f"- {name}: `{content.replace(chr(10), '; ')}`" for name, content in SERVICES.items()), "",
        "| collection | upgrade | service | old | new | recommended | serves | recommended by vectors | loss |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    table, losses, worth = [], list[float](), dict[str, list[float]]()
    flips, silent = 0, 0
    for key, of_upgrade in rows.groupby(keys, sort=False):
        collection, old, new = map(str, key)
        plain = of_upgrade[(of_upgrade["service"] == "") & of_upgrade["is_best"]]
        alone = tuple(plain.iloc[0][["method", "merge"]]) if len(plain) else None
        for service, of_service in of_upgrade.groupby(of_upgrade["service"].astype(str), sort=False):
            best = of_service[of_service["is_best"]]
            chosen = tuple(best.iloc[0][["method", "merge"]]) if len(best) else None
            has_no_merge = "separate" in SERVICES.get(service, "")
            first, loss = of_service.iloc[0], ""
            worth.setdefault(service, []).append(first["new_auc"] - first["old_auc"])
            if service and alone:
                names = 1 if has_no_merge else 2
                flips += chosen is None or chosen[:names] != alone[:names]
                silent += chosen is None
            if alone and chosen:
                there = of_service[(of_service["method"] == alone[0]) & (of_service["merge"] == alone[1])]
                losses += [best.iloc[0]["auc"] - there.iloc[0]["auc"]] if service else []
                loss = f"{best.iloc[0]['auc'] - there.iloc[0]['auc']:.1f}"
            said = _SITUATIONS.get(first["situation"], first["situation"])
            if chosen:
                said = chosen[0] if has_no_merge else " + ".join(chosen)
            table.append(
                f"| {collection} | {old} to {new} | {service or 'vectors alone'} | {first['old_auc']:.1f} | "
                f"{first['new_auc']:.1f} | {said} | {f'{best.iloc[0].auc:.1f}' if chosen else ''} | "
                f"{' + '.join(alone) if alone else 'nothing'} | {loss} |"
            )
    mean = {service: sum(values) / len(values) for service, values in worth.items()}
    hidden = [f"{mean[service]:.1f} behind *{service}*" for service in SERVICES]
    return "\n".join([
        *lines[:4],
        f"- **Another method is recommended in {flips} of {len(losses) + silent} settings**, in {silent} of them none: "
        f"no gain is shown any more. What the vectors alone recommend loses {sum(losses) / len(losses):.1f} points on "
        f"average and {max(losses):.1f} at most, more than half a point in {sum(loss > 0.5 for loss in losses)}. The "
        "best are chosen on the queries that judge them, so that small losses may be chance.",
        f"- **The text list hides much of the upgrade**: new - old is {mean['']:.1f} points by the vectors alone, on "
        f"average of the upgrades; {'; '.join(hidden)}.",
        "- Without a merge (`lists: separate`) merges change nothing, so only methods are compared.", "",
        *lines[4:], *table, "",
    ])  # fmt: skip


if __name__ == "__main__":
    options = Options(PipelineJob(data_root=Path("data")), sys.argv[1:])
    if {"-h", "--help"} & set(sys.argv):
        print(options.help()["run"])
    else:
        run_job(lambda: print(f"page: {run_pipelines(options.read())}"))
