"""Numbers that stand for many samples."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

__all__ = ["N_FOR_P99", "Summary", "paired_ratios", "per_process_medians", "relative_spread"]

N_FOR_P99 = 100
"""Fewer samples have no 99th percentile: it would be their maximum."""


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the samples of all processes.

    Attributes:
        n: samples.
        n_processes: processes they come from.
        p50, p90: percentiles, linear between samples.
        p99: None below `N_FOR_P99` samples.
        spread: see `relative_spread`; None below three processes.
    """

    n: int
    n_processes: int
    min: float
    p50: float
    p90: float
    p99: float | None
    max: float
    spread: float | None

    @classmethod
    def of(cls, processes: Sequence[Sequence[float]]) -> Summary:
        """Of at least one sample, one list for each process."""
        values = np.array([value for process in processes for value in process], dtype=np.float64)
        p50, p90, p99 = (float(value) for value in np.percentile(values, (50, 90, 99)))
        return cls(
            n=len(values),
            n_processes=len(processes),
            min=float(values.min()),
            p50=_rounded(p50),
            p90=_rounded(p90),
            p99=_rounded(p99) if len(values) >= N_FOR_P99 else None,
            max=float(values.max()),
            spread=relative_spread(processes),
        )


def _rounded(value: float) -> float:
    return round(value, 6)


def per_process_medians(processes: Sequence[Sequence[float]]) -> list[float]:
    """One number a process."""
    return [statistics.median(process) for process in processes]


def relative_spread(processes: Sequence[Sequence[float]]) -> float | None:
    """Interquartile range of the processes' medians over their median; None for less than three processes."""
    medians = per_process_medians(processes)
    middle = statistics.median(medians)
    if len(medians) < 3 or middle <= 0:
        return None
    first, third = np.percentile(medians, (25, 75))
    return _rounded(float(third - first) / middle)


def paired_ratios(case: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> list[float]:
    """What the case takes of the other, process by process: each measured both, in turns."""
    return [_rounded(a / b) for a, b in zip(per_process_medians(case), per_process_medians(other), strict=True)]
