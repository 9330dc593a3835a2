"""What the codec costs and what it loses: sizes beside other codecs, and the model's answers from a restored cache."""

from __future__ import annotations

from .quality import QualityReport, QualityRow, measure_quality
from .report import Setting
from .size import SizeReport, SizeRow, measure_size
from .texts import TEXT_NAMES, Text, get_text

__all__ = [
    "TEXT_NAMES",
    "QualityReport",
    "QualityRow",
    "Setting",
    "SizeReport",
    "SizeRow",
    "Text",
    "get_text",
    "measure_quality",
    "measure_size",
]
