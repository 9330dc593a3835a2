"""What a qualification ran on: parts and versions, no names of machines."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Collection
from pathlib import Path

import msgspec

from ..evaluate.machine import file_system_of, governor
from ..evaluate.report import Setting

__all__ = ["Hardware", "accelerator_here"]

_HOST = "CPU"
_UNKNOWN = "unknown"


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A machine.

    Attributes:
        cpu: the processor's name.
        n_cores: that the system shows.
        memory_bytes: of the machine.
        accelerator: its name; "" if the cache lies in host memory, "unknown" if its tools do not tell.
        driver: of the accelerator; likewise.
        backend: that holds the cache, as "CPU", "CUDA" or "CPU+CUDA".
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
    def here(cls, folder: Path, *, can_offload: bool = False) -> Hardware:
        """This machine, files in `folder`. can_offload: the cache may lie on an accelerator; `of_cache` tells then."""
        setting = Setting.here()
        accelerator, driver = accelerator_here() if can_offload else ("", "")
        return cls(
            cpu=setting.cpu,
            n_cores=setting.n_cores,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            accelerator=accelerator,
            driver=driver,
            backend=_HOST,
            isa=setting.isa,
            os=_distribution(),
            kernel=f"{platform.system()} {platform.release()}",
            governor=governor(),
            file_system=file_system_of(folder.resolve()),
        )

    def of_cache(self, components: Collection[str]) -> Hardware:
        """With what holds the cache: names of the backends of its components, as "CPU" or "CUDA0"."""
        devices = sorted(set(components) - {_HOST})
        if not devices:
            return msgspec.structs.replace(self, accelerator="", driver="", backend=_HOST)
        families = {name.rstrip("0123456789") for name in components}
        accelerator, driver = (self.accelerator, self.driver) if "CUDA" in families else (_UNKNOWN, _UNKNOWN)
        several = f"{len(devices)} x " if len(devices) > 1 and " and " not in accelerator else ""
        return msgspec.structs.replace(
            self,
            accelerator=f"{several}{accelerator or _UNKNOWN}",
            driver=driver or _UNKNOWN,
            backend="+".join(sorted(families)),
        )

    @property
    def is_accelerated(self) -> bool:
        """Some of the cache lies on an accelerator."""
        return self.backend != _HOST

    @property
    def title(self) -> str:
        """For tables."""
        if self.is_accelerated:
            return f"{self.accelerator} ({self.backend}), {self.n_cores} cores"
        return f"{self.accelerator or self.cpu}, {self.n_cores} cores"


def accelerator_here() -> tuple[str, str]:
    """Name and driver of NVIDIA's cards by their own tool; "unknown" where it is missing or says nothing."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return _UNKNOWN, _UNKNOWN
    cards = [line.rpartition(",") for line in result.stdout.splitlines() if "," in line]
    if result.returncode != 0 or not cards:
        return _UNKNOWN, _UNKNOWN
    # cards of several kinds in one machine: all are named, as a context may lie on any of them
    names = dict.fromkeys(name.strip() for name, _, _ in cards)
    return " and ".join(names), cards[0][2].strip()


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()
