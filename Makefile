# Each command makes the environment that it needs first: `make demo` the package alone, the others its tests, too. `make check`
# is for each commit: what changed, for a minute; it names what it left out. `make test` is everything but the long tests (marked
# nightly), planted bugs and sweeps that no change reaches: of these it draws some by the commit's hash. `make nightly` runs all of
# them. Tests that need real data sets skip where these are not, and are counted last.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.demo
READY := $(VENV)/.ready
DEMO := runs/digits-demo
# Noise by a compiled kernel, where there is a C compiler that works: the same draws.
export PRIVLEARN_COMPILE := $(shell cc -include math.h -include stdint.h -x c -shared -o /dev/null /dev/null 2> /dev/null && echo 1)
# Compiled files are kept, or each new process of a test would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE
# One thread for each worker: two that share two cores lose time.
TESTS := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo check test nightly coverage wheel docs notebooks lock lint clean

demo: $(BASE)
	@rm -rf $(DEMO)
	$(BIN)/privlearn train --data digits --examples 1437 --epsilon 4 --out $(DEMO)
	$(BIN)/privlearn verify $(DEMO)

check: $(READY) lint
	$(TESTS) -n 2 --maxfail 5 -m "not nightly" --changed --seconds 60

test: $(READY) lint
	$(TESTS) -n 2 --dist worksteal -m "not nightly"

# Tests of ledgers on a server need PostgreSQL there (Debian: postgresql; initdb and pg_ctl on the PATH); others skip them.
nightly: $(READY)
	PRIVLEARN_REQUIRE_POSTGRESQL=1 $(TESTS) -m "nightly or planted_bug or one_of"

# Branch coverage of the rooms that a guarantee rests on, by their own tests, the laws on layers and all named checks; at
# least 95 % of each.
ROOMS := core/accounting core/clipping core/mechanisms core/sampling publishing
coverage: $(READY)
	$(BIN)/coverage erase
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -q -n 2 -m "not nightly" --ignore-glob="*mutants*" \
	  tests/test_checks.py tests/laws/test_layer_kinds.py $(addprefix tests/,$(notdir $(ROOMS)))
	$(BIN)/coverage combine -q
	for room in $(ROOMS); do \
	  $(BIN)/coverage report --fail-under=95 --skip-covered --include="src/privlearn/$$room.py,src/privlearn/$$room/*" || exit 1; done

# The site, in site/: tutorials are run (minutes), links are checked, and a warning is an error.
docs: $(READY)
	$(PIP) -e ".[docs]"
	OMP_NUM_THREADS=2 $(BIN)/mkdocs build --strict --quiet

# The tutorials as notebooks without outputs, beside the programs that they are made of.
notebooks:
	$(PYTHON) docs/site_hooks.py

# uv.lock, in the versions of constraints.txt. pymdown-extensions wants Python 3.11.5, and is chosen for each Python.
lock: $(BASE)
	$(PIP) uv
	$(BIN)/uv --no-config lock --default-index https://pypi.org/simple \
	  $$(grep == constraints.txt | grep -v ^pymdown-extensions | sed 's/^/-P /')

# The wheel that is released, the same to the byte wherever it is built, its bill of materials, and their hashes.
wheel: $(BASE)
	rm -rf dist
	PRIVLEARN_COMPILE= $(BIN)/python -m pip wheel -q . --no-deps -w dist
	$(BIN)/python release/bill_of_materials.py dist > privlearn.cdx.json && mv privlearn.cdx.json dist
	cd dist && sha256sum *.whl *.json > SHA256SUMS && cat SHA256SUMS

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture --min-confidence 100 src

# torch first and alone, so that nothing drags in another build of it.
$(BASE): pyproject.toml constraints.txt hatch_build.py src/privlearn/core/mechanisms/noise_kernel.c
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e .
	@touch $(BASE)

$(READY): $(BASE)
	$(PIP) -e ".[test]"
	# One that was built for another torch than is here breaks whatever imports it (peft, lightning).
	$(BIN)/python -c "import torchvision" 2>/dev/null || $(BIN)/pip uninstall -q -y torchvision
	@touch $(READY)

clean:
	rm -rf $(VENV) runs
