#!/usr/bin/env bash
# The papers' experiment: train an old and a new backbone, embed the gallery, train the maps, and replay the backfill.
#
#     bash examples/papers.sh    # writes runs/papers; on rendered landmarks, without data, account or GPU
#
# Needs Ray and torch. On a cluster, from a clone (docs/cluster.md), with the same options and a shared folder:
#     ray job submit --working-dir . -- python jobs/simulate.py --recipe NAME ... --out /shared/runs/papers
set -euo pipefail

RECIPE=(--recipe landmarks) # CHANGE: --recipe cifar100 --data-root DATA --download, or imagenet (docs/images.md)
SMALL=(--images.train-images 3000 --images.gallery-images 1500 --images.queries 200
  --old.training.epochs 4 --new.training.epochs 4 --heads.epochs 10 --transforms.epochs 10) # CHANGE: SMALL=() for the recipe's own

ray-backfill simulate "${RECIPE[@]}" "${SMALL[@]}" --out runs/papers --dry-run
ray-backfill simulate "${RECIPE[@]}" "${SMALL[@]}" --out runs/papers --methods rm_naive fct rm
