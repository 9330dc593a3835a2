"""The machine under a measurement: who else uses it, and which files it holds in memory. On Linux."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from pathlib import Path

import numpy as np

__all__ = ["OthersWatch", "drop_from_page_cache", "file_system_of", "governor", "sync_file"]

_STAT = Path("/proc/stat")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


class OthersWatch:
    """How many cores other processes use from its making on."""

    def __init__(self) -> None:
        self._start = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        """Seconds: the clock's, this process's on the processor, all processes' on all cores."""
        try:
            fields = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return None
        user, nice, system, _idle, _iowait, irq, softirq, steal = fields
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        own = time.process_time()
        return time.perf_counter(), own, busy

    def cores(self) -> float | None:
        """The average so far; None where the system does not say."""
        now = self._read()
        if now is None or self._start is None:
            return None
        elapsed, own, busy = (b - a for a, b in zip(self._start, now, strict=True))
        return max(0.0, busy - own) / elapsed


def drop_from_page_cache(path: Path) -> float:
    """Write the file out and drop it; the percentage of its pages that stayed."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        n_pages = -(-os.fstat(file.fileno()).st_size // mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            view = np.frombuffer(mapping, np.uint8)
            resident = np.zeros(n_pages, np.uint8)
            mincore = ctypes.CDLL(None, use_errno=True).mincore
            mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
            status = mincore(view.ctypes.data, view.nbytes, resident.ctypes.data)
            del view
    if status != 0:
        raise OSError(ctypes.get_errno(), "mincore failed", str(path))
    return 100.0 * float(np.count_nonzero(resident & 1)) / n_pages


def sync_file(path: Path) -> None:
    """Wait until a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def file_system_of(path: Path) -> str:
    """The type of the file system a path is on."""
    best, found = "", "an unknown file system"
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mount_point, kind, *_ = line.split()
            if path.is_relative_to(mount_point) and len(mount_point) >= len(best):
                best, found = mount_point, kind
    return found


def governor() -> str:
    """What sets the first core's clock, or "unknown"."""
    try:
        return _GOVERNOR.read_text().strip()
    except OSError:
        return "unknown"
