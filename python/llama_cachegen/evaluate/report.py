"""What every measurement says of itself, and tables in Markdown."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from ..codec._lib import lib
from ..models import _sha256_of

__all__ = ["ModelFile", "Setting", "markdown_table", "setting_lines"]

_ISA_NAMES = {0: "scalar", 1: "AVX2", 2: "AVX-512", 3: "NEON"}


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """A model's file name, and its SHA-256."""

    name: str
    sha256: str

    @classmethod
    def of(cls, path: Path) -> ModelFile:
        """Of a GGUF file."""
        return cls(path.name, _sha256_of(path))


@dataclasses.dataclass(frozen=True)
class Setting:
    """Where a measurement was made.

    Attributes:
        cpu: the processor's name.
        n_cores: those of the machine.
        isa: instruction set of the codec.
        python_version: the texts depend on it.
        package_version: of llama-cachegen.
    """

    cpu: str
    n_cores: int
    isa: str
    python_version: str
    package_version: str

    @classmethod
    def here(cls) -> Setting:
        """Of this process."""
        isa = int(lib.cachegen_isa_active())
        return cls(
            cpu=_cpu_name(),
            n_cores=os.cpu_count() or 1,
            isa=_ISA_NAMES.get(isa, f"number {isa}"),
            python_version=platform.python_version(),
            package_version=importlib.metadata.version("llama-cachegen"),
        )


def _cpu_name() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()


def setting_lines(setting: Setting) -> list[str]:
    """The setting as lines of a Markdown list."""
    return [
        f"- machine: {setting.cpu}, {setting.n_cores} cores, codec on {setting.isa}",
        f"- llama-cachegen {setting.package_version}, Python {setting.python_version}",
    ]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, n_left: int = 1) -> list[str]:
    """A table; all but the first n_left columns are aligned to the right."""
    rule = ["---" if i < n_left else "---:" for i in range(len(columns))]
    return [f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows)]
