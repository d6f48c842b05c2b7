#!/usr/bin/env bash
# From two collections of Qdrant to a verdict: the one that serves, and the same points embedded by the new model.
# Every point queries the others, as for "similar items"; points of the same category are right answers.
#
#     bash examples/qdrant.sh    # writes runs/qdrant
#
# Needs: pip install qdrant-client. A key belongs in QDRANT_API_KEY.
set -euo pipefail

OLD='qdrant:http://localhost:6333#items'    # CHANGE: or a folder of Qdrant's local mode, qdrant:FOLDER#items
NEW='qdrant:http://localhost:6333#items_v2' # CHANGE: the same collection, if the new vectors have a name in it
COLUMNS=(--old vector --new vector --label category) # CHANGE: names of the vectors; "vector" has no name

ray-backfill import --out runs/qdrant/data --gallery "$OLD" "$NEW" "${COLUMNS[@]}"
ray-backfill simulate --data runs/qdrant/data --out runs/qdrant
