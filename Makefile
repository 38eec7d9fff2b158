# Two commands do everything on a machine that has Python 3.11+ and make:
#   make demo   train a blocked HMM on a built-in corpus, evaluate it, query it, draw it
#   make test   run the tests
# and `make docs` builds the documentation, which opens from site/index.html.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# HASHED=requirements-hashed.txt installs nothing whose hash is not in that list (see scripts/pin_hashes.py)
HASHED ?=
INSTALL_HASHED = $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r $(HASHED)

.PHONY: demo test test-slow gpu browser lint docs release clean

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
ifneq ($(HASHED),)
	$(INSTALL_HASHED)
	$(INSTALL) --no-build-isolation --no-deps -e .
else
	$(INSTALL) "torch" setuptools wheel
	$(INSTALL) --no-build-isolation -e .
endif
	touch $@

$(VENV)/.test: $(VENV)/.core
ifeq ($(HASHED),)
	$(INSTALL) --no-build-isolation -e ".[plot,test]"
endif
	touch $@

demo: $(VENV)/.core
	PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/demo.sh

# assertions as they stand: to rewrite them takes each process as long as hundreds of tests. What failed is run again, in words.
# Imports stay compiled, whatever the environment says: dozens of tests start processes of their own
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --assert=plain || ($(BIN)/python -m pytest -q --last-failed; false)

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -q -m "slow"

# tests, times and a training on a GPU, within 25 minutes, in pieces that a second call goes on with
gpu: $(VENV)/.test
	$(INSTALL) triton
	PYTHON=$(BIN)/python bash scripts/gpu.sh

# every page in a real chromium, which the system has; PPLSEQ_AXE names a file of axe-core that is there already
browser: $(VENV)/.test $(VENV)/.docs
	$(INSTALL) selenium
	test -n "$$PPLSEQ_AXE" || npm install --silent --no-save axe-core
	$(BIN)/python -m pytest -q -rs -m browser

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/python scripts/typecheck.py

$(VENV)/.docs: $(VENV)/.core
	$(INSTALL) --no-build-isolation -e ".[plot,docs]"
	touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean --quiet
	@echo "open site/index.html"

# wheel, sdist and notes of the last commit; nothing is uploaded
release:
	$(PYTHON) -m venv $(VENV)/release
	$(VENV)/release/bin/pip install --quiet --disable-pip-version-check build check-manifest twine
	$(VENV)/release/bin/python scripts/release.py

clean:
	rm -rf $(VENV) demo site .pytest_cache .ruff_cache
