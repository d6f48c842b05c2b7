"""Which names of methods, orders and merges belong together on a page. Unknown names are welcome everywhere."""

from collections.abc import Iterable

REFERENCES = ("old", "new", "offline")
BACKBONES = ("bct", "bict", "ract", "ract_hard")
MAPS_OLD_TO_NEW = (
    *("fct", "fct_side", "fastfill_disc", "fastfill_l2_disc", "fastfill_l2_u", "fastfill_disc_u", "fastfill"),
)
HEADS = ("rm_naive", "rqt", "cl_s", "cl_m", "mcl", "rqt_rho", "cl_s_rho", "cl_m_rho", "rm")
CLOSED_FORMS = ("procrustes", "procrustes_centred", "relaxed", "least_squares", "ridge", "low_rank")
SIDES = ("query", "gallery")
CLOSED_FORM_ADAPTERS = tuple(f"{kind}_{side}" for kind in CLOSED_FORMS for side in SIDES)
ADAPTERS = (*CLOSED_FORM_ADAPTERS, *(f"residual_mlp_{side}" for side in SIDES))

# Heading -> methods, in the order of a page's tables.
GROUPS = {
    "References": REFERENCES,
    "A new backbone": BACKBONES,
    "Maps old to new": MAPS_OLD_TO_NEW,
    "Rank merge: no map, or maps new to old": HEADS,
    "Adapters": ADAPTERS,
}
OTHER = "Others"

ORDERS = (
    *("random", "classifier_score", "least_confidence", "entropy", "margin", "centroid_cosine", "class_mean_distance"),
    *("sigma", "popularity", "given", "oracle_loss"),
)
MERGES = ("raw", "quantile", "csls", "rrf", "isotonic", "logistic")

# What needs neither gradient descent on pairs of embeddings nor, for the merge, any labels.
TRAINING_FREE_METHODS = ("rm_naive", *CLOSED_FORM_ADAPTERS)
LABEL_FREE_MERGES = ("raw", "quantile", "csls", "rrf")
# sigma comes out of FastFill's trained map.
TRAINED_ORDERS = ("sigma",)


def in_order(found: Iterable[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """The names that were found, once each: known ones in their order, then the others as they came."""
    names = tuple(dict.fromkeys(found))
    return tuple(n for n in known if n in names) + tuple(n for n in names if n not in known)


def grouped(methods: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Heading -> the methods that were found, without empty groups."""
    found = tuple(dict.fromkeys(methods))
    known = {m for members in GROUPS.values() for m in members}
    groups = {heading: tuple(m for m in members if m in found) for heading, members in GROUPS.items()}
    groups[OTHER] = tuple(m for m in found if m not in known)
    return {heading: members for heading, members in groups.items() if members}


def listed(methods: Iterable[str]) -> tuple[str, ...]:
    """The methods in the order in which a page lists them."""
    return tuple(m for members in grouped(methods).values() for m in members)
