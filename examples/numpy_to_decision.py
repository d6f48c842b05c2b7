"""From numpy arrays to a decision: which upgrade method should serve while the gallery is re-embedded?

    python examples/numpy_to_decision.py    # writes runs/example

10 seconds of processor time; 30 the first time, when the inner loops are compiled.

The vectors here are invented. Bring your own: one row per item in the same order for both models, and a label that
says which items belong together. Nothing is trained here: these methods need a formula, or nothing at all.
"""

import numpy as np

import ray_backfill as rb


def embeddings(items: int, seed: int) -> dict[str, np.ndarray]:
    """Invented: 50 classes; the new model has less noise and another dimension than the old one."""
    rng, label = np.random.default_rng(seed), np.arange(items) % 50
    signal = np.random.default_rng(0).normal(size=(50, 64))[label]
    old, new = signal[:, :32] + 1.5 * rng.normal(size=(items, 32)), signal + rng.normal(size=(items, 64))
    return {"old": old, "new": new, "label": label}


if __name__ == "__main__":
    gallery, queries, train = embeddings(5000, seed=1), embeddings(500, seed=2), embeddings(2000, seed=3)
    folder = rb.write_folder("runs/example/embeddings", gallery, queries, train)
    methods = ["offline", "rm_naive", "procrustes_gallery", "relaxed_gallery", "ridge_gallery"]
    results = rb.simulate(folder, out="runs/example", methods=methods, metrics=["mAP@100", "CMC@1"])
    results.show()
    print(results.compare())
