"""Putting a certificate beside the others, so that one stands for each workload on each hardware."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import CertificateError
from .certificate import Certificate, Link, seal, write_certificate
from .verify import contradictions, mark_superseded, read_all, standing

__all__ = ["publish"]


def publish(certificate: Certificate, folder: Path) -> Certificate:
    """Seal a certificate, write it, and mark the one it takes the place of.

    The new one is written first. A crash between the two leaves an older one unmarked, which every check names; a
    second call marks it.

    Raises:
        CertificateError: a certificate in the folder was edited, or they contradict each other already.
        OSError: the folder cannot be written.
    """
    others, problems = read_all(folder)
    problems += contradictions(others)
    if problems:
        raise CertificateError("; ".join(problems))
    taken = {other.id for other in others}
    unique, n = certificate.id, 2
    while unique in taken:
        unique, n = f"{certificate.id}-{n}", n + 1
    older = [other for other in standing(others) if other.subject == certificate.subject]
    link = Link(id=older[0].id, digest=older[0].digest) if older else None
    sealed = seal(msgspec.structs.replace(certificate, id=unique, supersedes=link))
    write_certificate(sealed, folder)
    for other in older:
        write_certificate(mark_superseded(other, sealed), folder)
    return sealed
