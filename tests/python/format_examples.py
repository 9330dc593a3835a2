"""The worked examples on the format pages."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FORMATS = Path(__file__).resolve().parents[2] / "docs" / "formats"


def blocks_of(page: str, language: str) -> list[str]:
    """All blocks of a language on a page."""
    text = (FORMATS / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def example(page: str, language: str = "hex") -> bytes:
    """The bytes of the only block of a language."""
    (block,) = blocks_of(page, language)
    return bytes.fromhex(block)


def example_values(page: str) -> NDArray[np.float16]:
    """The values [n_tokens, n_channels] that a page says its example decodes to."""
    (stated,) = blocks_of(page, "values")
    return np.array([line.split() for line in stated.splitlines()], dtype=np.float64).astype(np.float16)
