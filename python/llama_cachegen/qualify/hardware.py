"""What a qualification ran on: parts and versions, no names of machines."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import msgspec

from ..evaluate.machine import file_system_of, governor
from ..evaluate.report import Setting

__all__ = ["Hardware"]


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A machine.

    Attributes:
        cpu: the processor's name.
        n_cores: that the system shows.
        memory_bytes: of the machine.
        accelerator: its name; "" if the cache lies in host memory.
        driver: of the accelerator.
        backend: that holds the cache.
        isa: instruction set of the codec.
        os: of the distribution.
        kernel: name and release.
        governor: of the first core's clock, or "unknown".
        file_system: where the files were.
    """

    cpu: str
    n_cores: int
    memory_bytes: int
    accelerator: str
    driver: str
    backend: str
    isa: str
    os: str
    kernel: str
    governor: str
    file_system: str

    @property
    def key(self) -> str:
        """Short, for names of files: the processor, or the accelerator where there is one, and the cores."""
        words = re.findall(r"[a-z0-9]+", (self.accelerator or self.cpu).lower())
        noise = {"r", "tm", "cpu", "processor", "core", "with", "at"}
        kept = "-".join(word for word in words if word not in noise)[:40].strip("-")
        return f"{kept or 'unknown'}-{self.n_cores}c"

    @classmethod
    def here(cls, folder: Path) -> Hardware:
        """This machine, files in `folder`, the cache in host memory."""
        setting = Setting.here()
        return cls(
            cpu=setting.cpu,
            n_cores=setting.n_cores,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            accelerator="",
            driver="",
            backend="CPU",
            isa=setting.isa,
            os=_distribution(),
            kernel=f"{platform.system()} {platform.release()}",
            governor=governor(),
            file_system=file_system_of(folder.resolve()),
        )


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()
