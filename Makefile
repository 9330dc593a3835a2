# Thin names over scripts/. Every target does its own set-up.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: help setup demo test bench replay lint format clean

help:
	@echo "make demo    save a real model's KV cache in one process, restore it in another"
	@echo "make test    every test, native ones and sanitized builds included"
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
