# Everything a newcomer needs: `make demo` and `make test` set up what they use, on Python 3.10 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS := $(VENV)/.runs
SITE := $(VENV)/.site
PEERS := .peers
WORKERS ?= 2
# Files are kept together: what a file's tests share is made once.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: demo wheel test test-all test-quick test-gpu test-peers docs lint format bench clean

demo: $(RUNS)  ## search the shipped example, export the best mix, write the report
	rm -rf demo
	$(BIN)/bitfront demo --out demo

wheel: $(RUNS)  ## one file in dist/ that `pip install 'dist/bitfront-….whl[cpu]'` installs elsewhere
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

test: $(READY)  ## the test suite without its second layer, on two cores
	$(PYTEST) -m 'not long and not gpu and not peers'

test-all: $(READY)  ## both layers: also servers, a browser, storms of kills, builders and long leases
	$(PYTEST) -m 'not gpu and not peers'

test-quick: $(READY)  ## the fast tests of every package: for every day
	$(PYTEST) -m 'not slow and not long and not gpu and not peers'

test-gpu: $(READY)  ## what needs a GPU with TensorRT: minutes, most of them its builder's, so three go side by side
	$(BIN)/python -m pip install --quiet --editable '.[tensorrt]'
	$(BIN)/python -m pytest -m gpu -n 3 --dist loadfile

test-peers: $(READY) $(PEERS)/.ready  ## what is handed over, read by the other tools themselves
	BITFRONT_PEERS=$(abspath $(PEERS)) $(BIN)/python -m pytest -m peers

docs: $(SITE)  ## the documentation as a site in site/; fails on a link that leads nowhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: $(READY)  ## style, imports, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## every CPU benchmark, as ratios against baselines of the same run
	$(BIN)/python -m benchmarks.figures.run

# What a search needs, and no more: `make demo` does not wait for the tools of the tests.
$(RUNS): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "bitfront needs Python 3.10 or newer; say make PYTHON=/path/to/python3.10")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[cpu]'
	touch $(RUNS)

$(READY): $(RUNS)
	$(BIN)/python -m pip install --quiet --editable '.[cpu,dashboard,dev]'
	touch $(READY)

$(SITE): $(RUNS)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $(SITE)

$(PEERS)/.ready: tests/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --requirement tests/peers/requirements.txt
	$(PEERS)/bin/python -m pip install --quiet --no-deps 'nvidia-modelopt==0.47.*'
	touch $(PEERS)/.ready

clean:
	rm -rf $(VENV) $(PEERS) .prometheus site demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
