# Thin names over scripts/. Every target does its own set-up.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: help setup demo test parity bench replay lint format clean

help:
	@echo "make demo    save a real model's KV cache in one process, restore it in another"
	@echo "make test    every test, native ones and sanitized builds included"
	@echo "make parity  the codec's implementations against each other, as one table (make test has it too)"
	@echo "make bench   copies and restores against memcpy and llama.cpp's own state functions"
	@echo "make replay  prove that pristine llama.cpp plus patches/ gives the recorded tree"
	@echo "make lint    ruff, mypy --strict, clang-format, patch lint"

setup:
	$(PYTHON) scripts/setup

demo: setup
	$(BIN)/llama-cachegen models fetch smollm2
	$(BIN)/llama-cachegen demo

test:
	$(PYTHON) scripts/setup --tests
	$(BIN)/llama-cachegen models fetch smollm2
	$(BIN)/python -m pytest

parity:
	$(PYTHON) scripts/setup --tests
	$(BIN)/python -m pytest -q --deselect tests/python/test_native.py::test_sanitized \
		$(foreach name,codec_archive format_pages legacy legacy_reference lmcache native parity,tests/python/test_$(name).py)

bench: setup
	$(BIN)/llama-cachegen models fetch smollm2
	$(BIN)/llama-cachegen bench

replay:
	$(PYTHON) scripts/vendor
	$(PYTHON) scripts/patches verify

lint:
	$(PYTHON) scripts/setup --lint
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PYTHON) scripts/lint

format:
	$(PYTHON) scripts/setup --lint
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PYTHON) scripts/lint --fix

clean:
	rm -rf build .venv
