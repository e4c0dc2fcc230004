# Every target installs what it needs: see .ci/set-up. `make` alone lists the targets.
PY := .venv/bin/python
FOLDERS := envs models serving platform tests
PROCESSES ?= 2
IN_PARALLEL = -n $(PROCESSES) --no-loadscope-reorder  # tests/conftest.py distributes the files

.PHONY: help setup demo check test test-long test-engines coverage lint typecheck format client clean
.NOTPARALLEL:

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup:  ## a .venv with the versions in constraints.txt; the other targets call this
	@.ci/set-up

demo: setup  ## evaluate a trained policy, replay it, train another, adapt a third, serve all
	@echo "demo 1/5: a trained policy and every heuristic on the same 20 job sequences"
	@.venv/bin/loadmaster evaluate decima --against all --seeds 20 --output results/demo
	@echo "demo 2/5: the policy and the best heuristic side by side"
	@.venv/bin/loadmaster replay decima -o results/demo/replay.html
	@echo "demo 3/5: two minutes of training from scratch"
	@rm -rf results/demo-run
	@.venv/bin/loadmaster train decima --set training.minutes=2 --output results/demo-run
	@echo "demo 4/5: a policy for pods adapts to an application that it never saw"
	@.venv/bin/loadmaster adapt aware --application test:7 --episodes 5 --output results/demo-adapted
	@echo "demo 5/5: the pretrained policies behind HTTP, one decision request each"
	@.venv/bin/loadmaster serve --try --port 8799 --folder results/demo-service
	@echo "demo: open results/demo/replay.html in a browser; tables and plots are in results/demo,"
	@echo "demo: the learning curve is results/demo-run/curve.png"

check: lint typecheck  ## lint, types and the fast tests: about two minutes once compiled
	@$(PY) -m pytest -q -m "not slow" $(IN_PARALLEL) $(PYTEST_ARGS)

test: setup  ## all tests but the long ones (PYTEST_ARGS="-k name" for some)
	@.ci/install-chromium
	@.ci/install-prometheus
	@$(if $(PYTEST_ARGS),,$(PY) -P .ci/compile-ahead)
	@$(PY) -m pytest -m "not long" $(IN_PARALLEL) $(PYTEST_ARGS)

# In one process: they measure times, and each starts several processes of its own.
test-long: setup  ## the long ones: kills, loads and drift of whole services and trainings
	@$(PY) -m pytest -m long $(PYTEST_ARGS)

test-engines: setup  ## steering of every real engine, fetched at first (LOADMASTER_ENGINES=flink for one)
	@LOADMASTER_ENGINES=$${LOADMASTER_ENGINES:-all} $(PY) -m pytest -m engine $(PYTEST_ARGS) \
		tests/platform/steering

coverage: setup  ## all tests, then the share of lines they run, processes they start included
	@.ci/install-chromium
	@.ci/install-prometheus
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(PY) -m coverage run -m pytest -q $(IN_PARALLEL) $(PYTEST_ARGS)
	@$(PY) -m coverage combine -q && $(PY) -m coverage report --sort=cover | tail -n 40

lint: setup  ## ruff: faults and formatting
	@$(PY) -m ruff check $(FOLDERS)
	@$(PY) -m ruff format --check $(FOLDERS)

# mypy must see the four folders under their import names, and `platform/` not under its own, so it
# reads links in a scratch folder.
typecheck: setup  ## mypy, strict
	@mkdir -p build/types/loadmaster
	@for package in envs models serving platform; do \
		ln -sfn ../../../$$package build/types/loadmaster/$$package; done
	@$(PY) -m mypy -p loadmaster

format: setup  ## ruff: format, and fix what it can
	@$(PY) -m ruff check --fix $(FOLDERS)
	@$(PY) -m ruff format $(FOLDERS)

client: setup  ## dist/loadmaster_client-*.whl: the HTTP client alone, standard library only
	@rm -rf build/client && mkdir -p build && cp -r serving/client build/client
	@$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist build/client
	@ls dist/loadmaster_client-*.whl

clean:  ## remove what make made, except results/
	@rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find envs models serving platform tests -name __pycache__ -type d -prune -exec rm -rf {} +
