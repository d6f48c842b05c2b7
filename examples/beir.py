"""From a BEIR folder and two models to a verdict.

    python examples/beir.py    # writes runs/beir

The folder has corpus.jsonl, queries.jsonl and qrels/test.tsv. Needs Ray and torch (docs/models.md).
"""

import ray_backfill as rb

BEIR = "datasets/nfcorpus"  # CHANGE: your folder; the judgements say what a right answer is
OLD = "sentence-transformers:sentence-transformers/all-MiniLM-L6-v2"  # CHANGE: the model that serves, or its folder
NEW = "sentence-transformers:BAAI/bge-base-en-v1.5"  # CHANGE: the model that will replace it

if __name__ == "__main__":
    folder = rb.embed(OLD, NEW, texts=BEIR, out="runs/beir")  # a run that was stopped continues
    methods = ["offline", "rm_naive", "procrustes_gallery", "ridge_gallery", "cascade@100"]  # train nothing
    results = rb.simulate(folder, out="runs/beir", methods=methods, metrics=["nDCG@10", "recall@100"])
    results.show()
    print("report: runs/beir/results/report.html")
