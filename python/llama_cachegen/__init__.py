"""Save the KV cache of a llama.cpp model as small checked files and restore it into resident tensors.

Importing the package loads the patched libllama and checks that it is the one the package was built with.
"""

from __future__ import annotations

import logging

from . import errors
from ._binding import ABI_VERSION, LLAMA_COMMIT, PATCH_DIGEST
from .engine import Capabilities, Engine
from .errors import CachegenError, MissReason, PageMismatchError
from .ggml_types import GgmlType
from .page import Page, PageComponent
from .page_identity import PageIdentity
from .receipts import (
    FirstTokenTiming,
    Outcome,
    PrefillTiming,
    RestoreReceipt,
    SaveReceipt,
    StoreRestoreReceipt,
    StoreSaveReceipt,
)
from .session import Session
from .store import Store

__all__ = [
    "ABI_VERSION",
    "LLAMA_COMMIT",
    "PATCH_DIGEST",
    "CachegenError",
    "Capabilities",
    "Engine",
    "FirstTokenTiming",
    "GgmlType",
    "MissReason",
    "Outcome",
    "Page",
    "PageComponent",
    "PageIdentity",
    "PageMismatchError",
    "PrefillTiming",
    "RestoreReceipt",
    "SaveReceipt",
    "Session",
    "Store",
    "StoreRestoreReceipt",
    "StoreSaveReceipt",
    "errors",
]

__version__ = "0.1.0"

logging.getLogger("llama_cachegen").addHandler(logging.NullHandler())
