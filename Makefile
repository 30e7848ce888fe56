# `make demo` and `make test` need nothing but Python 3.11 or newer: each makes .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
PINS := --constraint requirements/pins.txt

# Compiled modules are kept, whatever the shell says: a test run starts hundreds of Python processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow lint style types check format docs wheel check-wheel clean

demo: .venv/installed-demo
	$(BIN)/sophon demo

# Types are checked beside the tests: mypy takes twenty seconds of one core if it has not run here before.
test: style
	$(MAKE) --no-print-directory --jobs 2 types check

# More processes than the two cores this is meant for: most tests wait for servers, links and deadlines.
check: .venv/installed-test
	$(BIN)/python -m pytest -m "not slow" --numprocesses 6 --dist loadfile --no-loadscope-reorder

# Benchmarks and attacks compare rates, so nothing else runs beside them.
ALONE := tests/bench tests/trust
test-slow: .venv/installed-test
	$(BIN)/python -m pytest -m slow --numprocesses 3 --dist loadfile --no-loadscope-reorder $(ALONE:%=--ignore=%)
	$(BIN)/python -m pytest -m slow $(ALONE)

lint: style types

style: .venv/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/installed-test
	$(BIN)/mypy

format: .venv/installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("sophon needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv

.venv/installed-demo: .venv/bin/python pyproject.toml requirements/pins.txt
	$(PIP) $(PINS) --editable ".[report,torch]"
	touch $@

# Everything but torch comes with the SHA-256 of its file: torch has one build per kind of accelerator under one version.
# torchvision is installed without its dependencies, which would ask for another build of torch.
.venv/installed-test: .venv/bin/python pyproject.toml setup.py requirements/hashed.txt requirements/pins.txt requirements/hashed-datasets.txt requirements/hashed-ray.txt
	$(PIP) --require-hashes --no-deps --requirement requirements/hashed.txt
	$(PIP) --require-hashes --no-deps --requirement requirements/hashed-ray.txt
	$(PIP) $(PINS) torch==2.13.0
	$(PIP) --no-deps torchvision==0.28.0
	$(PIP) --no-deps --no-build-isolation --editable .
	$(PIP) --require-hashes --no-deps --upgrade --target .venv/datasets --requirement requirements/hashed-datasets.txt
	touch .venv/installed-demo $@

# The site in build/docs; a warning is an error, and nothing is fetched from the network.
docs: .venv/installed-docs
	PYTHONPATH=.venv/docs $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs build/docs

# Apart from the tests' packages, as Hugging Face's datasets are; what both need is the tests'.
.venv/installed-docs: .venv/installed-test requirements/hashed-docs.txt
	$(PIP) --require-hashes --no-deps --upgrade --target .venv/docs --requirement requirements/hashed-docs.txt
	touch $@

# dist/: an sdist, and a wheel with the extensions in it that runs on any Linux with a C library as old as its name says.
# The plain wheel is built from the sdist, so that nothing is missing there.
wheel: .venv/installed-wheel
	rm -rf build/wheel dist && mkdir -p build/wheel
	PYTHONPATH=.venv/wheel $(BIN)/python -m build --no-isolation --outdir build/wheel .
	PATH="$(CURDIR)/.venv/wheel/bin:$$PATH" PYTHONPATH=.venv/wheel $(BIN)/python -m auditwheel repair --strip --wheel-dir dist build/wheel/*.whl
	mv build/wheel/*.tar.gz dist/

# In an environment of its own, without a compiler: from the wheel to the end of the demo. Then tests of ops and codecs with
# the package of the wheel in the place of this folder's.
check-wheel: wheel
	$(BIN)/python -m pytest -m slow tests/test_wheel.py
	$(PIP) --no-deps --upgrade --target build/wheel-site dist/*.whl
	PYTHONPATH=build/wheel-site $(BIN)/python -m pytest -m "not slow" --numprocesses 2 tests/codec tests/pipeline tests/store

.venv/installed-wheel: .venv/installed-test requirements/hashed-wheel.txt
	$(PIP) --require-hashes --no-deps --upgrade --target .venv/wheel --requirement requirements/hashed-wheel.txt
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} + -o -name '*.egg-info' -prune -exec rm -rf {} +
