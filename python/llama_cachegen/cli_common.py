"""What the modules of the command line share."""

from __future__ import annotations

import json
import os
from typing import Any

import click

__all__ = ["json_option", "mib", "print_json", "threads_option"]

json_option = click.option("--json", "as_json", is_flag=True, help="print one JSON document instead of text")


def _default_threads() -> int:
    return min(8, os.cpu_count() or 1)


threads_option = click.option(
    "--threads",
    "n_threads",
    type=click.IntRange(1, 1024),
    default=_default_threads,
    show_default="up to 8",
    help="threads to use",
)


def mib(n_bytes: int) -> str:
    """A size for people."""
    return f"{n_bytes / 2**20:.1f} MiB"


def print_json(value: Any) -> None:
    """One document on standard output."""
    click.echo(json.dumps(value, indent=2))
