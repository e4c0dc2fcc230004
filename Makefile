# Every target sets itself up: see .ci/set-up. `make` alone lists them.
PY := .venv/bin/python
FOLDERS := envs models serving platform tests

.PHONY: help setup demo test lint typecheck format clean
.NOTPARALLEL:

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

setup:  ## a .venv with the versions in constraints.txt; the other targets call this
	@.ci/set-up

demo: setup  ## judge a trained policy, film it, train another from scratch, serve and ask
	@echo "demo 1/4: a trained policy and every heuristic on the same 20 job sequences"
	@.venv/bin/loadmaster evaluate decima --against all --seeds 20 --output results/demo
	@echo "demo 2/4: the policy and the best heuristic side by side"
	@.venv/bin/loadmaster replay decima -o results/demo/replay.html
	@echo "demo 3/4: two minutes of training from scratch"
	@rm -rf results/demo-run
	@.venv/bin/loadmaster train decima --set training.minutes=2 --output results/demo-run
	@echo "demo 4/4: the pretrained policies behind HTTP, asked for one decision each"
	@.venv/bin/loadmaster serve --try --port 8799 --folder results/demo-service
	@echo "demo: open results/demo/replay.html in a browser; tables and plots are in results/demo,"
	@echo "demo: the learning curve is results/demo-run/curve.png"

test: setup  ## all tests (PYTEST_ARGS="-k name" for some)
	@.ci/install-chromium
	@$(if $(PYTEST_ARGS),,nice $(PY) -P .ci/compile-ahead &) $(PY) -m pytest $(PYTEST_ARGS)

lint: setup  ## ruff: faults and formatting
	@$(PY) -m ruff check $(FOLDERS)
	@$(PY) -m ruff format --check $(FOLDERS)

# mypy has to see the four folders under their import names, not `platform/` under its own: it
# looks at links in a scratch folder.
typecheck: setup  ## mypy, strict
	@mkdir -p build/types/loadmaster
	@for floor in envs models serving platform; do \
		ln -sfn ../../../$$floor build/types/loadmaster/$$floor; done
	@$(PY) -m mypy -p loadmaster

format: setup  ## ruff: format, and mend what it can
	@$(PY) -m ruff check --fix $(FOLDERS)
	@$(PY) -m ruff format $(FOLDERS)

clean:  ## remove what make made; results/ stays
	@rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find envs models serving platform tests -name __pycache__ -type d -prune -exec rm -rf {} +
