"""Whether a certificate's decisions follow from its own samples, and whether a folder of them is consistent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from ..errors import CertificateError
from .certificate import Certificate, read_certificate
from .gates import decide_overall, judge_harness, judge_row

__all__ = ["contradictions", "read_all", "standing", "verify_certificate"]


def verify_certificate(certificate: Certificate) -> None:
    """Decide again, from the samples and thresholds, and compare.

    Raises:
        CertificateError: a summary, a gate or a decision is another one than its samples give.
    """
    try:
        _compare(certificate)
    except (ArithmeticError, LookupError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise CertificateError(f"certificate {certificate.id}: its samples cannot be decided on ({what})") from None


def _compare(certificate: Certificate) -> None:
    for row in certificate.rows:
        again = judge_row(row, certificate.workload)
        for case, own in zip(row.cases, again.cases, strict=True):
            for what in ("summaries", "gates", "decision"):
                if getattr(case, what) != getattr(own, what):
                    where = f"certificate {certificate.id}, {row.name}, {case.name}"
                    raise CertificateError(f"{where}: its {what} do not follow from its samples")
        if row.decision != again.decision:
            raise CertificateError(
                f"certificate {certificate.id}, {row.name}: its decision does not follow from its cases"
            )
    harness = judge_harness(certificate.harness.empty_ms, certificate.rows, certificate.workload)
    if harness != certificate.harness or decide_overall(certificate.rows, harness) != certificate.decision:
        raise CertificateError(f"certificate {certificate.id}: its decision does not follow from its rows")


def read_all(folder: Path) -> tuple[list[Certificate], list[str]]:
    """Every certificate of a folder that follows from its own samples, and what is wrong with the others."""
    found: list[Certificate] = []
    problems: list[str] = []
    for path in sorted(folder.glob("*.json")):
        if path.name == "schema.json":
            continue
        try:
            certificate = read_certificate(path)
            verify_certificate(certificate)
        except CertificateError as error:
            problems.append(str(error))
        else:
            found.append(certificate)
    return found, problems


def standing(certificates: Iterable[Certificate]) -> list[Certificate]:
    """Those that no newer one supersedes."""
    return [certificate for certificate in certificates if certificate.superseded_by is None]


def contradictions(certificates: Sequence[Certificate]) -> list[str]:
    """What certificates say against each other: two that stand for one subject, links that do not meet."""
    problems = []
    by_id = {certificate.id: certificate for certificate in certificates}
    for certificate in certificates:
        link = certificate.supersedes
        if link is not None:
            older = by_id.get(link.id)
            if older is None or older.digest != link.digest:
                problems.append(f"{certificate.id} supersedes {link.id}, which is not there with that digest")
            elif older.superseded_by != certificate.id:
                problems.append(
                    f"{older.id} ({older.decision.outcome}) is superseded by {certificate.id} "
                    f"({certificate.decision.outcome}) but is not marked so"
                )
        if certificate.superseded_by is not None:
            newer = by_id.get(certificate.superseded_by)
            if newer is None or newer.supersedes is None or newer.supersedes.id != certificate.id:
                problems.append(
                    f"{certificate.id} is marked superseded by {certificate.superseded_by}, which does not say so"
                )
    subjects: dict[tuple[str, str, bool], list[Certificate]] = {}
    for certificate in standing(certificates):
        subjects.setdefault(certificate.subject, []).append(certificate)
    for (workload, hardware, _), several in subjects.items():
        if len(several) > 1:
            several.sort(key=lambda one: (one.conditions.ended_utc, one.id))
            words = " and ".join(f"{one.id} ({one.decision.outcome})" for one in several)
            problems.append(f"{words} both stand for {workload} on {hardware}: the older one must be marked superseded")
    return problems


def mark_superseded(certificate: Certificate, newer: Certificate) -> Certificate:
    """The same certificate, pointing at the one that took its place; its seal does not cover that."""
    return msgspec.structs.replace(certificate, superseded_by=newer.id)
