"""One figure of a certificate by its path, as words for a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..errors import ClaimError
from .certificate import Certificate
from .verify import standing

__all__ = ["figure", "find_certificate", "format_value"]


def find_certificate(certificates: Sequence[Certificate], selector: str) -> Certificate:
    """The standing certificate of "workload@hardware".

    Raises:
        ClaimError: there is none: the claim is for something that was never run.
    """
    workload, _, hardware = selector.partition("@")
    for certificate in standing(certificates):
        if (certificate.workload.name, certificate.hardware.key) == (workload, hardware) and not certificate.is_quick:
            return certificate
    have = ", ".join(sorted(f"{one.workload.name}@{one.hardware.key}" for one in standing(certificates))) or "none"
    raise ClaimError(f"no certificate for {selector}: it was never run there; there are: {have}")


def figure(certificates: Sequence[Certificate], reference: str) -> str:
    """The figure of "workload@hardware ROW CASE PATH", for example "… f16/f16 balanced summaries.warm.ttft_ms.p50".

    PATH leads through the fields of the case; `row.` before it means those of the row, and `gate.NAME` a gate's figure.

    Raises:
        ClaimError: no certificate carries it.
    """
    words = reference.split(maxsplit=3)
    if len(words) != 4:
        raise ClaimError(f"figure {reference!r}: WORKLOAD@HARDWARE ROW CASE PATH are wanted")
    selector, row_name, case_name, path = words
    certificate = find_certificate(certificates, selector)
    try:
        row = certificate.row(row_name)
        case = row.case(case_name)
        if path.startswith("gate."):
            (gate,) = (gate for gate in case.gates if gate.name == path.removeprefix("gate."))
            value: Any = gate.measured
        elif path.startswith("row."):
            value = _walk(msgspec.to_builtins(row), path.removeprefix("row."))
        else:
            value = _walk(msgspec.to_builtins(case), path)
    except (KeyError, ValueError):
        raise ClaimError(f"figure {reference!r}: {certificate.id} has none of that path") from None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ClaimError(f"figure {reference!r}: {certificate.id} has no number there")
    return format_value(path, value)


def _walk(value: Any, path: str) -> Any:
    """Field by field; names may have dots in them ("warm.ttft_ms")."""
    while path:
        if not isinstance(value, dict):
            raise KeyError(path)
        name = max((name for name in value if path == name or path.startswith(f"{name}.")), key=len, default=None)
        if name is None:
            raise KeyError(path)
        value, path = value[name], path[len(name) + 1 :]
    return value


def format_value(path: str, value: float) -> str:
    """With the unit that the path's name has."""
    if "_ms" in path:
        return f"{value:,.1f} ms" if value < 1000 else f"{value / 1000:,.1f} s"
    if path.endswith("_bytes"):
        return f"{value / 2**20:,.1f} MiB"
    if "nats" in path:
        return f"{value:.4f}"
    if "agreement" in path or path.endswith("_percent"):
        return f"{value if path.endswith('_percent') else 100 * value:.1f} %"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3f}"
