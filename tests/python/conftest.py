"""Shared fixtures: a tiny model, the fetched SmolLM2, and a summary of what the native tests printed."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# (title, text) printed after the run, so that the counts and the matrix are in every log
NATIVE_REPORTS: list[tuple[str, str]] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for title, text in NATIVE_REPORTS:
        terminalreporter.section(title)
        terminalreporter.write_line(text)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root folder."""
    return ROOT
