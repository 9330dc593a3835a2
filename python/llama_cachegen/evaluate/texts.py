"""Real texts that every CPython ships, for measurements without a data set. Their words differ between Python versions.

With SmolLM2's tokenizer and Python 3.11 each of them has more than 20,000 tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import inspect
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType, ModuleType

from ..errors import CachegenError

__all__ = ["TEXT_NAMES", "Text", "get_text"]

_TOPICS = ("compound", "types", "specialnames", "formatstrings", "typesseq")
_DOCUMENTED_MODULES = (
    "collections", "csv", "datetime", "difflib", "fractions", "functools", "heapq", "itertools", "logging", "pathlib",
    "random", "shutil", "statistics", "string", "subprocess", "tempfile", "textwrap", "threading", "typing",
    "unittest.case", "zipfile",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Text:
    """A text to evaluate a model on.

    Attributes:
        name: of one of `TEXT_NAMES`, or the file's own name.
        text: the text.
        sha256: of the text in UTF-8.
        description: where it comes from.
    """

    name: str
    text: str = dataclasses.field(repr=False)
    sha256: str
    description: str

    @classmethod
    def of(cls, name: str, text: str, description: str) -> Text:
        """A text with its digest."""
        return cls(name, text, hashlib.sha256(text.encode("utf-8")).hexdigest(), description)


def _reference() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in _TOPICS)


def _code() -> str:
    import argparse

    return inspect.getsource(argparse)


def _data() -> str:
    from html.entities import html5

    return json.dumps(html5, indent=1, sort_keys=True)


def _docstrings_of(module: ModuleType) -> list[str]:
    """Docstrings of a module, of its own public functions and classes, and of the public methods of these, by name."""
    found = [module.__doc__ or ""]
    for name, member in sorted(vars(module).items()):
        if name.startswith("_") or not (inspect.isroutine(member) or inspect.isclass(member)):
            continue
        if getattr(member, "__module__", None) != module.__name__:
            continue
        if document := inspect.getdoc(member):
            found.append(f"{module.__name__}.{name}\n\n{document}")
        if not inspect.isclass(member):
            continue
        for method_name, method in sorted(vars(member).items()):
            document = getattr(method, "__doc__", None)
            if not method_name.startswith("_") and inspect.isroutine(method) and document:
                found.append(f"{module.__name__}.{name}.{method_name}\n\n{inspect.cleandoc(document)}")
    return found


def _docstrings() -> str:
    parts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # some members warn when they are looked at
        for name in _DOCUMENTED_MODULES:
            parts.extend(_docstrings_of(importlib.import_module(name)))
    return "\n\n".join(part for part in parts if part)


_TEXTS: MappingProxyType[str, tuple[Callable[[], str], str]] = MappingProxyType(
    {
        "reference": (_reference, f"pydoc topics {', '.join(_TOPICS)}"),
        "code": (_code, "source of argparse"),
        "data": (_data, "html.entities.html5 as JSON"),
        "docstrings": (_docstrings, f"docstrings of {len(_DOCUMENTED_MODULES)} modules of the standard library"),
    }
)

TEXT_NAMES = tuple(_TEXTS)
"""The texts that come with Python."""


@functools.cache
def _shipped_text(name: str) -> Text:
    make, description = _TEXTS[name]
    return Text.of(name, make(), description)


def get_text(name_or_path: str | os.PathLike[str]) -> Text:
    """One of `TEXT_NAMES`, or a file of UTF-8; bytes that are none become replacement characters.

    Raises:
        CachegenError: neither; the message lists the names.
        OSError: the file cannot be read.
    """
    name = os.fspath(name_or_path)
    if name in _TEXTS:
        return _shipped_text(name)
    path = Path(name)
    if not path.is_file():
        raise CachegenError(f"{name}: no such file and not one of: {', '.join(TEXT_NAMES)}")
    return Text.of(path.name, path.read_text(encoding="utf-8", errors="replace"), "a file")
