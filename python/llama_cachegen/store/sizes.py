"""Sizes in bytes, as people write and read them."""

from __future__ import annotations

import re

__all__ = ["format_size", "parse_size"]

_UNITS = {"B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?(B|KiB|MiB|GiB|TiB)\Z", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes of "32GiB", "1.5 MiB" or "0B".

    Raises:
        ValueError: no unit, or another one.
    """
    found = _SIZE.match(text)
    if found is None:
        raise ValueError(f"{text!r} is no size; write it with a unit: {', '.join(_UNITS)}, for example 32GiB")
    return int(float(found[1]) * 1024 ** _UNITS[found[2]])


def format_size(n_bytes: int) -> str:
    """ "12.0 MiB"; below 1 KiB "12 B"."""
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{n_bytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
