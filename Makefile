# `make demo` and `make test`; both make the environment first if it is not there yet. `make test` leaves out the long tests
# (marked nightly), which `make nightly` runs. Tests that need real data sets skip where these are not, and are counted last.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := runs/digits-demo

.PHONY: demo test nightly lint clean

demo: $(READY)
	@rm -rf $(DEMO)
	$(BIN)/privlearn train --data digits --examples 1437 --epsilon 4 --out $(DEMO)
	$(BIN)/privlearn verify $(DEMO)

test: $(READY) lint
	$(BIN)/python -m pytest -q -n 2 -m "not nightly"

nightly: $(READY)
	$(BIN)/python -m pytest -q -m nightly

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# One resolver run, torch first and alone, so that nothing drags in another build of it.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	@touch $(READY)

clean:
	rm -rf $(VENV) runs
