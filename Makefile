# make demo: install, simulate a 4D rollout, show it.  make test: the whole suite.  make check: lint and types.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
OUT ?= out/demo

.PHONY: demo test check format bench wheel-test clean

demo: .venv/.demo
	$(BIN)/python examples/04_simulate.py --out $(OUT)

test: .venv/.dev
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.dev
	$(BIN)/python benchmarks/control.py
	$(BIN)/python benchmarks/data.py

# The wheel alone, without extras: the package must carry its own files and work with a robot that needs none.
wheel-test: .venv/.dev
	rm -rf out/wheel && mkdir -p out/wheel
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps -w out/wheel .
	$(BIN)/python -m venv out/wheel/venv
	out/wheel/venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt out/wheel/kinema4d-*.whl
	out/wheel/venv/bin/python tests/smoke.py out/wheel

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "kinema4d needs Python 3.11 or newer; found $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv || { echo "no venv module: apt-get install python3-venv"; exit 1; }

.venv/.demo: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[robots,view,world]'
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ .venv/.demo

clean:
	rm -rf .venv out .pytest_cache .ruff_cache .hypothesis
