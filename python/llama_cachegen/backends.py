"""What is known of each backend: how far the codec on it was executed, and what shows it."""

from __future__ import annotations

import ctypes
import enum
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["BACKENDS", "BackendEvidence", "Device", "Evidence", "evidence_of", "list_devices"]


class Evidence(str, enum.Enum):
    """From the most to the least. A certificate that passes is more than any of them: "hardware-qualified"."""

    HARDWARE = "run on hardware"
    EMULATED = "emulated, pending hardware"
    COMPILED = "compiled, pending hardware"


@dataclass(frozen=True)
class BackendEvidence:
    """A backend.

    Attributes:
        name: as documents call it.
        devices: pattern of the names that ggml gives its devices.
        level: without certificates.
        executed: what of it was.
        shown_by: paths in the source tree.
    """

    name: str
    devices: str
    level: Evidence
    executed: str
    shown_by: tuple[str, ...]


BACKENDS = (
    BackendEvidence("CPU", r"CPU", Evidence.HARDWARE, "every test, on x86-64", ("tests/README.md",)),
    BackendEvidence(
        "CUDA",
        r"CUDA\d*",
        Evidence.HARDWARE,
        "kernels and C interface on one card; the Python tests have not passed on one",
        ("docs/measurements/cuda-restore.md", "docs/cuda-notebook.md"),
    ),
    BackendEvidence(
        "HIP",
        r"(?:HIP|ROCm)\d*",
        Evidence.COMPILED,
        "every kernel compiled for five targets; its half-wave functions emulated in waves of 32 and 64",
        ("docs/backends.md", "native/kernels/hip/manifest.csv"),
    ),
    BackendEvidence(
        "Metal",
        r"(?:Metal|MTL)\d*",
        Evidence.EMULATED,
        "the kernels' text on emulated lanes, not by Apple's compiler; the host's side over a made-up device",
        ("docs/backends.md", "tests/metal/README.md"),
    ),
)


def evidence_of(device: str) -> BackendEvidence | None:
    """Of the backend that has a device of this name, for example "CUDA0"; None: nothing is known of it."""
    return next((one for one in BACKENDS if re.fullmatch(one.devices, device)), None)


@dataclass(frozen=True)
class Device:
    """A device that the loaded library offers: its name, for example "CUDA0", and its description."""

    name: str
    description: str


def list_devices() -> list[Device]:
    """Every device of the loaded library, in ggml's order."""
    from ._binding import llama

    library = llama._lib

    def function(name: str, result: Any, *arguments: Any) -> Any:
        found = getattr(library, name)  # of libggml, which libllama brings
        found.restype, found.argtypes = result, arguments
        return found

    count = function("ggml_backend_dev_count", ctypes.c_size_t)
    get = function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    name_of = function("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    description_of = function("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    handles = [get(i) for i in range(count())]
    return [Device(name_of(one).decode(), description_of(one).decode(errors="replace")) for one in handles]
