#!/usr/bin/env bash
# From a key for an endpoint of OpenAI's protocol to a verdict: is the large model worth its price, and how to get there?
# Before anything is paid, it prints how many texts and tokens will be read and what that costs; afterwards the bill.
#
#     OPENAI_API_KEY=... bash examples/endpoint.sh    # writes runs/endpoint
#
# Needs Ray, torch, httpx and tenacity (docs/models.md). OPENAI_BASE_URL names another service, such as vLLM or Ollama.
set -euo pipefail

OLD='openai:text-embedding-3-small#price=0.02&rpm=3000' # CHANGE: the model that serves, dollars per million tokens
NEW='openai:text-embedding-3-large#price=0.13&rpm=3000' # CHANGE: the model that will replace it
TEXTS='corpus.csv'                                      # CHANGE: columns id, text and label; or a BEIR folder

# To pay for 5 % of the new model only: ray-backfill forecast --budget 5% with the same models and texts.
ray-backfill simulate --old "$OLD" --new "$NEW" --texts "$TEXTS" --out runs/endpoint \
  --methods offline rm_naive procrustes_gallery ridge_gallery
