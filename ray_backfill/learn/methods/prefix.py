"""A common Matryoshka prefix: new queries search the old gallery in the first dimensions that both models have.

Source: Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022: the leading dimensions of an embedding are
an embedding. Of use only if the new model was trained so that they agree with the old one's, as versions of one
truncated model do.
"""

from ray_backfill.learn.expressions import Prefix, Side, Stored, plain
from ray_backfill.learn.methods import Method

METHODS = (
    Method(
        "common_prefix", "common prefix", "Kusupati et al. 2022: leading dimensions",
        Side(Prefix(Stored("new"), "old"), Prefix(Stored("old"), "new")), plain("new"), "Adapters",
        glossary={
            "Common prefix": "Old items are searched with the new query in the first dimensions that both models have. "
            "Of use only for models that were trained to agree there."
        },
    ),
)  # fmt: skip
