"""Qualification: what a restore is worth on a machine, measured, decided, and kept as a certificate.

docs/qualification.md says what is measured and how a certificate is read.
"""

from __future__ import annotations

from .certificate import Certificate, read_certificate
from .publish import publish
from .run import run_qualification
from .verify import verify_certificate
from .workload import Workload, load_workload, workload_names

__all__ = [
    "Certificate",
    "Workload",
    "load_workload",
    "publish",
    "read_certificate",
    "run_qualification",
    "verify_certificate",
    "workload_names",
]
