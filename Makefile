# What can be done with this tree; `make` alone lists it.
#
# Needed: python3 (3.11 or newer), make, and a network for Python's packages. No root: `make test` only
# uses it, where it has it, to install what some tests need (TEST_PROGRAMS) and to test other users' rights.

VENV := .venv
BIN := $(VENV)/bin
# Another Python than .ci/make-venv would choose: make PYTHON=/path/to/python3 …
PYTHON :=
# Processes that run tests at the same time.
WORKERS := 2
# program:package, for apt-get. Tests run these as they are.
TEST_PROGRAMS := systemd-analyze:systemd

.PHONY: help venv check test demo bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(VENV)/.developer ## make .venv, with all that development needs
	@echo "$(BIN) is ready"

# The project alone, as `make demo` needs it. The command starts Python without its module `site` and so
# knows nothing of editable installations: the link shows it the package at the usual place.
$(VENV)/.installed: pyproject.toml clients/bin/perilog .ci/make-venv
	[ -x $(BIN)/pip ] || .ci/make-venv $(VENV) $(PYTHON)
	$(BIN)/pip install --quiet --editable .
	cd $(VENV)/lib/python3.*/site-packages && ln -sfn "$(CURDIR)/clients/perilog" perilog
	touch $@

$(VENV)/.developer: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

check: $(VENV)/.developer ## style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

test: check ## the checks, then all tests
	@missing=; for pair in $(TEST_PROGRAMS); do \
	    command -v $${pair%%:*} >/dev/null || missing="$$missing $${pair##*:}"; \
	done; \
	if [ -z "$$missing" ]; then exit; fi; \
	if [ "$$(id -u)" != 0 ]; then \
	    echo "make test: tests need these packages; as root: apt-get install$$missing" >&2; exit 1; \
	fi; \
	apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends $$missing
	$(BIN)/pytest -n $(WORKERS)

demo: $(VENV)/.installed ## three jobs and their logs, on a private daemon that leaves nothing behind
	@$(BIN)/perilog demo

bench: $(VENV)/.developer ## how fast it is, as ratios to what this machine can do
	@$(BIN)/python tests/bench/bench.py

clean: ## remove all that was made
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
