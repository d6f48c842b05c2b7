"""From a folder of photographs and two vision models to a verdict.

    python examples/photographs.py    # writes runs/photographs

Needs Ray, torch and transformers. A function of yours can stand for a model: python:MODULE:FUNCTION (docs/models.md).
"""

import ray_backfill as rb

PHOTOGRAPHS = "photographs/"  # CHANGE: its subfolders are classes, which make right answers
OLD = "hf:microsoft/resnet-18"  # CHANGE: the model that serves, a name or a folder
NEW = "hf:facebook/dinov2-small"  # CHANGE: the model that will replace it

if __name__ == "__main__":
    # At most 500 queries and 5,000 items for maps are drawn from the folder; the rest is the gallery.
    folder = rb.embed(OLD, NEW, images=PHOTOGRAPHS, out="runs/photographs")
    methods = ["offline", "rm_naive", "procrustes_gallery", "ridge_gallery"]  # train nothing
    results = rb.simulate(folder, out="runs/photographs", methods=methods)
    results.show()
    print("report: runs/photographs/results/report.html")
