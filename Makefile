# make demo    the main job on rendered landmarks, from nothing to a report
# make test    what to know before a commit: six minutes on two cores      make test-all    every test
# make check   lint, types, documentation and every test: what CI runs     make docs-serve  the documentation in a browser
# make bench   what the replay costs beside its limits: some ten minutes
# make bench-serving   what two partitions and approximate indexes cost     make bench-throttle   latency against rate
# make bench-scale   a million images streamed and killed, each stage's price, GLDv2's size: about 20 minutes
# make reproduce DATA=PATH        docs/results/omniglot.md: every method, three seeds, all claims
# make reproduce-landmarks        docs/results/landmarks.md: the same on rendered landmarks, open class
# make reproduce-photographs DATA=PATH        docs/results/tiny_imagenet.md: methods of two models on photographs, five seeds
# make atlas DATA=PATH            docs/results/atlas.md: pretrained models on public collections, and what rules of choice lose
# EXTRA=gpu make setup            on a machine with a CUDA GPU; make gpu then measures there what no other machine can (docs/gpu.md)
PYTHON ?= python3
EXTRA ?= $(if $(wildcard .venv/.ready-gpu),gpu,cpu)
BIN := .venv/bin
# Otherwise each of the hundreds of processes that tests and Ray start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
READY := .venv/.ready-$(EXTRA)
CONSTRAINTS := $(if $(filter gpu,$(EXTRA)),constraints-gpu.txt,constraints.txt)

.PHONY: setup demo test test-all test-heavy lint types docs docs-serve wheel check bench bench-serving bench-throttle bench-scale reproduce reproduce-landmarks reproduce-photographs atlas gpu clean

setup: $(READY)

$(READY): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: Python 3.11 or newer is needed; name one with PYTHON=python3.12 make $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv .venv
	@rm -f .venv/.ready-*
	$(BIN)/python -m pip uninstall --quiet --yes faiss-cpu faiss-gpu 2>/dev/null
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint $(CONSTRAINTS) --editable '.[$(EXTRA),dev,docs]'
# milvus-lite, which tests use, brings faiss-cpu, the same module as faiss-gpu; whichever comes last would win.
ifeq ($(EXTRA),gpu)
	$(BIN)/python -m pip uninstall --quiet --yes faiss-cpu faiss-gpu
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --constraint $(CONSTRAINTS) faiss-gpu
endif
# On all cores; pip would compile on one. Not what few processes import. Errors are ignored: some packages contain files for other
# versions of Python.
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests/|/transformers/models/|/moto/|/ministack/' .venv/lib || true
	@touch $(READY)
ifeq ($(EXTRA),gpu)
	$(BIN)/python -m ray_backfill.engine.stack
endif

demo: setup
	$(BIN)/ray-backfill simulate --out runs/demo

# Several processes, which share compiled kernels. JOBS: how many; at most two of them use a Ray of their own.
JOBS ?= $(shell nproc)
PYTEST := $(BIN)/python -m pytest --dist loadfile

test: setup
	$(PYTEST) -n $(JOBS) -m "not full and not heavy"

# One more: tests of clusters mostly wait.
test-all: setup
	$(PYTEST) -n $$(($(JOBS) + 1)) -m "not heavy"

test-heavy: setup
	$(PYTEST) -n $(JOBS) -m "heavy or hypothesis" --hypothesis-profile many --timeout 7200

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# Fails on dead links, pages that no menu leads to, and docstrings that do not fit their function.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

wheel: setup
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

check: lint types docs test-all

bench: setup
	$(BIN)/python -m benchmarks.replay

bench-serving: setup
	$(BIN)/python -m benchmarks.serving --figures docs/results

bench-throttle: setup
	$(BIN)/python -m benchmarks.throttle --out runs/throttle --figures docs/results

bench-scale: setup
	$(BIN)/python -m benchmarks.stages
	rm -rf runs/scale
	$(BIN)/python -m benchmarks.scale --out runs/scale
	$(BIN)/python -m benchmarks.stream --out runs/stream --figures docs/results

reproduce: setup
	@test -n "$(DATA)" || { echo "error: say where the Omniglot files are: make reproduce DATA=PATH"; exit 2; }
	$(BIN)/ray-backfill reproduce --recipe omniglot --data-root $(abspath $(DATA)) --subgroups omniglot_biased \
	  --tune 8 --long-epochs 40 \
	  --out runs/reproduce --page docs/results/omniglot.md --findings docs/results/omniglot-findings.md

reproduce-landmarks: setup
	$(BIN)/ray-backfill reproduce --recipe landmarks --no-ablation --tune 8 \
	  --out runs/reproduce-landmarks --page docs/results/landmarks.md --findings docs/results/landmarks-findings.md

reproduce-photographs: setup
	@test -n "$(DATA)" || { echo "error: say where tiny_imagenet.zip is: make reproduce-photographs DATA=PATH"; exit 2; }
	$(BIN)/ray-backfill reproduce --recipe tiny_imagenet --data-root $(abspath $(DATA)) --seeds 0 1 2 3 4 \
	  --methods two_models controls --no-ablation --no-published --tune 4 --out runs/reproduce-photographs \
	  --page docs/results/tiny_imagenet.md --findings docs/results/tiny_imagenet-findings.md

atlas: setup
	@test -n "$(DATA)" || { echo "error: say where the collections are: make atlas DATA=PATH"; exit 2; }
	$(BIN)/python -m reproduction.atlas --data-root $(abspath $(DATA)) \
	  $(if $(METHOD),--methods $(METHOD),--page docs/results/atlas.md --findings docs/results/atlas-findings.md)
	$(if $(METHOD),,$(BIN)/python -m reproduction.atlas.rrf docs/results/atlas.parquet docs/rrf.md)

# Ten pieces of at most ten minutes. PRETEND=1: those that need no GPU, on any machine; it writes nothing.
gpu:
	$(MAKE) setup $(if $(PRETEND),,EXTRA=gpu)
	$(BIN)/python -m benchmarks.gpu $(PIECES) $(if $(PRETEND),--pretend,--page docs/results/gpu.md)

clean:
	rm -rf .venv runs build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
