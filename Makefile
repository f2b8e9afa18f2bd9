BIN := .venv/bin
MODEL ?= smollm2
# Of pytest: one more than there are cores, since a shader compiler waits for nobody.
WORKERS ?= $(shell echo $$(( $$(nproc 2>/dev/null || echo 2) + 1 )))

.DEFAULT_GOAL := help
.PHONY: help setup packages demo test check pytest test-browser bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

setup: ## make .venv and install zllm into it
	@bash scripts/setup.sh

packages: setup
	@bash scripts/packages.sh

demo: setup ## chat with SmolLM2 (answers one question where there is no terminal)
	@bash scripts/demo.sh $(MODEL)

test: check pytest ## run every check, and the tests (ZLLM_TESTS=all: in every guise)

check: setup ## ruff, mypy and import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# A file to a worker, whose models are then opened once. Threads of OpenBLAS wait for each other by
# spinning: workers side by side would take each other's cores.
pytest: setup packages
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile $(ARGS)

test-browser: setup packages ## run the tests that need Chromium
	$(BIN)/pytest -m browser $(ARGS)

bench: setup ## measure zLLM on this machine
	$(BIN)/zllm bench --model $(MODEL) $(ARGS)

clean: ## remove the environment and every cache of this folder
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build
	find zllm tests -name __pycache__ -type d -prune -exec rm -rf {} +
