"""Memory one save or restore takes for a moment, measured in a process of its own.

`python -m llama_cachegen.evaluate.archive_memory JSON` is that process; Linux only.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from .. import llama_state
from ..engine import Engine
from ..session import Session

__all__ = ["PeakMemory", "can_measure_memory", "measure_memory"]

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"
_SAMPLE_S = 0.0005


@dataclasses.dataclass(frozen=True)
class PeakMemory:
    """What the process grew by during one call.

    Attributes:
        peak_bytes: peak of its resident memory (VmHWM, reset before) less the resident memory before (VmRSS).
        anon_bytes: the largest growth seen of RssAnon: memory that is no file's. Sampled, so possibly too small.
        file_bytes: the same of RssFile: mapped file pages.
        n_samples: how often these two were read.
        transient_bytes: what the library itself counted, in host and device memory together, besides cache and
            archive; 0 of llama.cpp's state file.
    """

    peak_bytes: int
    anon_bytes: int
    file_bytes: int
    n_samples: int
    transient_bytes: int


def can_measure_memory() -> bool:
    """The system has what is needed."""
    return _CLEAR_REFS.exists() and _STATUS.exists()


def _read_status() -> dict[str, int]:
    """Bytes of VmHWM, VmRSS, RssAnon, RssFile."""
    found = {}
    for line in _STATUS.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("VmHWM", "VmRSS", "RssAnon", "RssFile"):
            found[name] = int(rest.split()[0]) * 1024
    return found


class _Sampler:
    """Reads RssAnon and RssFile until it is stopped."""

    def __init__(self) -> None:
        self.samples: list[dict[str, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self.samples.append(_read_status())

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _call(session: Session, action: str, kind: str, path: str, n_threads: int) -> int:
    """`PeakMemory.transient_bytes`."""
    if kind == "llama":
        (llama_state.save_file if action == "save" else llama_state.load_file)(session, path)
        return 0
    if action == "save":
        return session.save(path, None if kind == "native" else kind, n_threads=n_threads).transient_bytes
    restored = session.restore(path, n_threads=n_threads)
    if not restored.restored:
        raise RuntimeError(f"{path} was not restored")
    return restored.transient_bytes


def _measure(config: dict[str, Any]) -> PeakMemory:
    with Engine(
        config["model"],
        n_ctx=config["n_ctx"],
        n_threads=config["n_threads"] or None,
        n_gpu_layers=config["n_gpu_layers"],
        type_k=config["type_k"],
        type_v=config["type_v"],
        swa_full=config["swa_full"],
    ) as engine:
        _ = engine.identity  # hashes the model, once
        with engine.session() as session:
            if config["action"] == "save":
                _call(session, "restore", config["fill_kind"], config["fill"], config["n_threads"])
            sampler = _Sampler()
            before = _read_status()
            _CLEAR_REFS.write_text(_RESET_PEAK)
            n_transient = _call(session, config["action"], config["kind"], config["path"], config["n_threads"])
            after = _read_status()
            sampler.stop()
    samples = [before, *sampler.samples, after]

    def growth(name: str) -> int:
        return max(sample[name] for sample in samples) - before[name]

    return PeakMemory(
        peak_bytes=max(0, after["VmHWM"] - before["VmRSS"]),
        anon_bytes=growth("RssAnon"),
        file_bytes=growth("RssFile"),
        n_samples=len(sampler.samples),
        transient_bytes=n_transient,
    )


def measure_memory(
    *,
    model: Path,
    n_ctx: int,
    n_threads: int,
    action: str,
    kind: str,
    path: Path,
    fill: Path,
    fill_kind: str = "native",
    type_k: str = "f16",
    type_v: str = "f16",
    swa_full: bool = False,
    n_gpu_layers: int = 0,
) -> PeakMemory:
    """One save or restore in a new process.

    Args:
        model: GGUF file.
        n_ctx, n_threads, type_k, type_v, swa_full, n_gpu_layers: of its engine; n_threads 0: all cores.
        action: "save" or "restore".
        kind: "native", "llama" for llama.cpp's state file, or a profile; a restore only asks whether it is "llama".
        path: the file saved or restored.
        fill, fill_kind: the file restored before a save, and its kind.

    Raises:
        RuntimeError: the process failed.
    """
    config = {
        "model": str(model),
        "n_ctx": n_ctx,
        "n_threads": n_threads,
        "action": action,
        "kind": kind,
        "path": str(path),
        "fill": str(fill),
        "fill_kind": fill_kind,
        "type_k": type_k,
        "type_v": type_v,
        "swa_full": swa_full,
        "n_gpu_layers": n_gpu_layers,
    }
    command = [sys.executable, "-m", "llama_cachegen.evaluate.archive_memory", json.dumps(config)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if process.returncode != 0:
        raise RuntimeError(f"the process that measures memory ended with status {process.returncode}")
    return PeakMemory(**json.loads(process.stdout))


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(_measure(json.loads(sys.argv[1])))))
