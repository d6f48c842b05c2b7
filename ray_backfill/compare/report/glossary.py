"""Terms of a report, with their definitions."""

from collections.abc import Iterable

from ray_backfill.compare.report.results import Results

# docs/glossary.md has the same terms with their papers.
GLOSSARY = {
    "Gallery, query": "The gallery is the set of items that the service searches; a query is what users search for.",
    "Backfill": "Re-embedding every gallery item with the new model, here online, that is, while queries are served. "
    "Progress t is the share of the gallery that is backfilled, from 0 to 1.",
    "{query, gallery}": "A retrieval system, written as the model that embeds the query and the model that embedded "
    "the gallery. {old, old} is the service before the upgrade, {new, new} the finished upgrade.",
    "Cross-model query": "A query embedded by one model that searches gallery embeddings of another, such as "
    "{new, old}. It needs compatible models, or a learned map between them.",
    "Backward-compatible": "A new model whose queries can search the old gallery as it is: {new, old} is better than "
    "{old, old}.",
    "Forward-compatible": "Old embeddings that a map h can transform into the new model's space, so that new queries "
    "search {new, h(old)} without waiting for the backfill.",
    "M_t": "The quality metric at progress t. Backfilled items are searched by the forward system, all others by the "
    "backward system, and the two result lists are merged by distance. M_0 is the start, M_1 the end of the backfill.",
    "AUC": "The area under M_t for t from 0 to 1, by the trapezoid rule: the average quality during the backfill.",
    "Gain": "(AUC of the method \u2212 AUC of old) / (AUC of new \u2212 AUC of old). It can exceed 100 %. It has no "
    "value if new is not clearly better than old.",
    "95 % interval": "What 95 % of repetitions with other queries of the same kind would give, estimated by a "
    "bootstrap over the queries.",
    "Margin": "The largest loss that counts as none, in points. It decides marks, milestones and crossings.",
    "As old, half gain, as new from": "Milestones: the share of the backfill from which on quality stays as good as "
    "the old service, has half of the upgrade's improvement, or is as good as the new model alone.",
    "Largest fall": "The largest drop of M_t from any moment to any later one, at 101 moments or more.",
    "Order": "The sequence in which gallery items are backfilled. An oracle order uses knowledge that is not available "
    "in advance: it is an upper bound, never a recommendation.",
    "Merge": "Combines the results of the backward and the forward system into one ranking (rank merge). Raw compares "
    "the distances as they are; every other merge first makes the two systems comparable.",
    "Negative flip": "A query whose first result was right before and is wrong at progress t: an error that users "
    "notice. A positive flip is the reverse. \u201cBefore\u201d is the same method at t = 0, or {old, old}.",
}


def glossary(results: Results) -> dict[str, str]:
    """Term -> definition: the general terms, and those of this run's metrics, merges, methods and orders."""
    traits, found = results.manifest.traits, GLOSSARY | of_metrics(results.metrics)
    for of_kind, names in (
        (traits.merges, results.merges),
        (traits.methods, results.methods),
        (traits.orders, results.orders),
    ):
        for name in names:
            found |= of_kind[name].glossary
    return found


def of_metrics(names: Iterable[str]) -> dict[str, str]:
    """Forms of the names of these metrics -> definition."""
    from ray_backfill.engine.metrics import KINDS

    used = {name.partition("@")[0] for name in names}
    return {", ".join(kind.forms): kind.meaning for kind in KINDS if kind.name in used}
