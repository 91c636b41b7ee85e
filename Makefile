# Everything a developer or CI runs. `make demo` and `make test` set themselves up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo docs test test-all lint types layers check bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: install  ## train three heads for about three minutes and draw their learning curves
	$(BIN)/python examples/demo.py

docs: install  ## the documentation site, in site/; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test: install  ## everything that must hold, in minutes
	$(BIN)/pytest -q -n auto --dist loadfile

test-all: install  ## the slower tests too
	$(BIN)/pytest -q -m slow -n auto --dist worksteal

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: install
	$(BIN)/mypy

layers: install
	$(BIN)/lint-imports

check: lint types layers test test-all  ## what CI runs

bench: install  ## speed against peers and against the physics (about half an hour on a quiet machine)
	$(BIN)/python benchmarks/speed.py

clean:
	rm -rf $(VENV) site .peers-venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
