#!/usr/bin/env bash
# From a database with pgvector to a verdict. Each table has a column of the vectors that serve now and one of the new
# model's, and a log says what users clicked. Nothing is written to the database.
#
#     bash examples/pgvector.sh    # writes runs/pgvector
#
# Needs: pip install 'psycopg[binary]'. Passwords belong in PGPASSWORD or ~/.pgpass.
set -euo pipefail

DATABASE='postgresql://me@localhost/shop'            # CHANGE: the address; a table or a SELECT follows it after #
COLUMNS=(--id id --old embedding --new embedding_v2) # CHANGE: what your tables call them
CLICKS='SELECT search AS query, item, clicks FROM clicks' # CHANGE: or --truth labels below, see docs/truth.md

ray-backfill import --out runs/pgvector/data --gallery "$DATABASE#items" "${COLUMNS[@]}"
ray-backfill import --out runs/pgvector/data --queries "$DATABASE#searches" "${COLUMNS[@]}"
ray-backfill simulate --data runs/pgvector/data --out runs/pgvector --truth clicks "$DATABASE#$CLICKS"
