# Everything a newcomer needs: make demo, make test. The environment is .venv; the first run downloads, later ones do not.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
ARGS ?=

.PHONY: help demo test check docs reference format faults bench lock clean
help:
	@echo 'make demo    see a pipeline survive three kills, on a real broker (ARGS="--store URL --json")'
	@echo 'make test    all tests, on real servers'
	@echo 'make check   lint, types, which room imports from which, and the links of the documentation'
	@echo 'make docs    the site of the documentation, in site/'
	@echo 'make reference   write what the reference takes from the code'
	@echo 'make faults  the long fault tests'
	@echo 'make bench   race pipelines and services against other tools; writes docs/explanation/benchmarks.md (hours; ARGS=--quick: minutes)'
	@echo 'make format  put the code into shape'
	@echo 'make lock    pin the newest dependencies'
	@echo 'make clean   remove the environment and what tools left behind'

demo: $(READY)
	@$(BIN)/tallymark demo $(ARGS)

check: $(READY)
	@$(BIN)/ruff check src tests bench examples tools
	@$(BIN)/ruff format --check --quiet src tests bench examples tools
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python -m tools.links

docs: .venv-docs/.ready
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict
	@echo 'open site/index.html'

reference: $(READY)
	@$(BIN)/python -m tools.reference

.venv-docs/.ready: requirements/docs.txt
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

# One worker more than there are cores: tests wait about as much as they work.
test: $(READY)
	@echo 'starting Kafka, PostgreSQL, MariaDB and Valkey (the first run downloads them: 210 MB)'
	@$(BIN)/pytest -q -n 3 --dist loadgroup $(ARGS)

faults: $(READY)
	@$(BIN)/pytest -q -m faults -n 3 --dist loadgroup $(ARGS)

PARTS := throughput computing totals avro latency growth cluster profiling stores consumers producer
bench: $(READY)
ifeq ($(ARGS),)
	@set -e; for part in $(PARTS); do $(BIN)/python -m bench.$$part --write docs/explanation/benchmarks.md; done
else
	@$(BIN)/python -m bench.throughput $(ARGS)
endif

format: $(READY)
	@$(BIN)/ruff check --fix --quiet src tests bench examples tools; $(BIN)/ruff format src tests bench examples tools

$(READY): requirements/lock.txt requirements/java.txt pyproject.toml
	@echo 'setting up .venv (the first run downloads Spark: 430 MB)'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tallymark needs Python 3.11 or later: make PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/lock.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --no-index -e .
	@$(BIN)/python -c 'from tallymark.local.java import java_home; java_home()' 2>/dev/null \
	  || $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/java.txt
	@touch $@

# uv resolves for all Pythons and platforms at once. Spark stays at 4.0: requirements/constraints.txt says why.
lock:
	@python3 -m venv .venv-lock && .venv-lock/bin/pip install --quiet uv
	@.venv-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --no-header --constraints requirements/constraints.txt --extra all --group dev --output-file requirements/lock.txt pyproject.toml
	@.venv-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --no-header --output-file requirements/java.txt requirements/java.in
	@.venv-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --no-header --group docs --output-file requirements/docs.txt
	@rm -rf .venv-lock

clean:
	@rm -rf .venv .venv-lock .venv-docs .venv-quix .venv-quix.lock site .mypy_cache .ruff_cache .pytest_cache .hypothesis dist spark-warehouse
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
