#!/usr/bin/env bash
# The papers' experiment: train an old and a new backbone, embed the gallery, train the maps, and replay the backfill.
#
#     bash examples/papers.sh    # writes runs/papers; on rendered landmarks, without data, account or GPU
#
# Needs Ray and torch. On a cluster, from a clone (docs/cluster.md), with the same options and a shared folder:
#     ray job submit --working-dir . -- python jobs/simulate.py --recipe NAME ... --out /shared/runs/papers
set -euo pipefail

# Without the two sizes, the recipe has its own: minutes here, GPU hours for ImageNet. docs/images.md lists recipes.
RECIPE=(--recipe landmarks --images.train-images 3000 --images.gallery-images 1500) # CHANGE: --recipe NAME --data-root PATH
METHODS=(rm_naive fct rm)                                                           # CHANGE: or all

ray-backfill simulate "${RECIPE[@]}" --out runs/papers --methods "${METHODS[@]}" --dry-run # what it needs
ray-backfill simulate "${RECIPE[@]}" --out runs/papers --methods "${METHODS[@]}"
