# make demo    the main job on rendered landmarks, from nothing to a report
# make test    the tests          make check   lint, types and tests: what CI runs
# make bench   what the replay costs beside its limits: about 11 minutes
# EXTRA=gpu make setup            on a machine with a CUDA GPU
PYTHON ?= python3
EXTRA ?= $(if $(wildcard .venv/.ready-gpu),gpu,cpu)
BIN := .venv/bin
READY := .venv/.ready-$(EXTRA)

.PHONY: setup demo test lint types check bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: Python 3.11 or newer is needed; name one with PYTHON=python3.12 make $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv .venv
	@rm -f .venv/.ready-*
	$(BIN)/python -m pip uninstall --quiet --yes faiss-cpu faiss-gpu 2>/dev/null
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRA),dev]'
	@touch $(READY)

demo: setup
	$(BIN)/python jobs/simulate_gldv2.py --out runs/demo

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

check: lint types test

bench: setup
	$(BIN)/python benchmarks/replay.py

clean:
	rm -rf .venv runs build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
