"""A picture of bits per value, layer by layer, in characters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["bar", "layer_lines"]

_EIGHTHS = " ▏▎▍▌▋▊▉"
_NUMBER = 6


def bar(fraction: float, width: int, *, ascii_only: bool = False) -> str:
    """A bar of up to width characters, in eighths of one; anything above 0 shows."""
    if not fraction > 0 or width < 1:
        return ""
    fraction = min(fraction, 1.0)
    if ascii_only:
        return "#" * max(1, round(fraction * width))
    n_eighths = max(1, round(fraction * width * 8))
    return "█" * (n_eighths // 8) + _EIGHTHS[n_eighths % 8].strip()


def layer_lines(
    layers: Sequence[dict[str, Any]],
    *,
    columns: int = 80,
    ascii_only: bool = False,
    style: Callable[[str, str], str] = lambda text, kind: text,
) -> list[str]:
    """A heading, and one line a layer with a number and a bar for each kind that any layer has.

    Args:
        layers: each with "layer" and the bits of "K", "V" and "AUX", None where there is none.
        columns: no line is longer, as far as the numbers allow.
        ascii_only: bars of # instead of block characters.
        style: called with a bar and its kind; what it adds must take no room.
    """
    kinds = [kind for kind in ("K", "V", "AUX") if any(row[kind] is not None for row in layers)]
    if not kinds:
        return []
    label = max(5, *(len(str(row["layer"])) for row in layers))
    width = max(4, (columns - label) // len(kinds) - _NUMBER - 3)
    most = max(row[kind] for row in layers for kind in kinds if row[kind] is not None)
    heading = "layer".rjust(label) + "".join(f"  {kind:>{_NUMBER}} {'bits a value':<{width}.{width}}" for kind in kinds)
    lines = [heading.rstrip()]
    for row in layers:
        line = str(row["layer"]).rjust(label)
        for kind in kinds:
            bits = row[kind]
            if bits is None:
                line += f"  {'-':>{_NUMBER}} {'':<{width}}"
                continue
            drawn = bar(bits / most if most and math.isfinite(most) else 0.0, width, ascii_only=ascii_only)
            line += f"  {bits:>{_NUMBER}.2f} {style(drawn, kind)}{'':<{width - len(drawn)}}"
        lines.append(line.rstrip())
    return lines
