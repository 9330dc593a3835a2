"""A qualification from its workload to its certificate: every step in a process of its own, one after another."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import QualifyError, WorkloadError
from ..evaluate.archive_memory import can_measure_memory, measure_memory
from ..models import _sha256_of, resolve_model
from .assemble import assemble_certificate, assemble_row
from .cases import LLAMA, NATIVE, NATIVE_ARCHIVE, file_name
from .certificate import Certificate, Conditions, ModelFacts, RowEvidence, TextFacts
from .hardware import Hardware
from .journal import Journal
from .provenance import Software
from .shapes import write_shape
from .step_config import StepConfig
from .workload import Row, Workload

__all__ = ["Progress", "run_qualification"]

Progress = Callable[[int, int, str], None]
"""progress(n_done, n_total, what), in steps."""


def _now_utc() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _find_model(workload: Workload, work: Path) -> tuple[Path, ModelFacts]:
    """The GGUF file, and what the certificate says of it.

    Raises:
        ModelFetchError: a fetched model that is not there.
        WorkloadError: its digest is not the declared one.
    """
    if workload.is_synthetic:
        path = write_shape(workload.model.removeprefix("shape:"), work)
    else:
        path = resolve_model(workload.model)
    actual = _sha256_of(path)
    if not workload.is_synthetic and workload.model_sha256 and actual != workload.model_sha256:
        raise WorkloadError(
            f"workload {workload.name}: {path.name} has SHA-256 {actual}, {workload.model_sha256} is declared; "
            "give the model that is meant, or a workload of your own"
        )
    return path, ModelFacts(
        name=path.name, sha256=actual, n_bytes=path.stat().st_size, is_synthetic=workload.is_synthetic
    )


class _Run:
    def __init__(
        self, workload: Workload, model: Path, journal: Journal, work: Path, progress: Progress, text_paths: list[str]
    ) -> None:
        self.workload = workload
        self.model = model
        self.journal = journal
        self.work = work
        self.texts = text_paths
        self._progress = progress
        self._names = self._step_names()

    def _step_names(self) -> list[str]:
        names = ["tokens"]
        memory = [f"memory {action}" for action in ("restore", "save")] if can_measure_memory() else []
        for row in self.workload.typed_rows:
            names.append(f"{row.name}: prepare")
            names += [f"{row.name}: timing {i}" for i in range(self.workload.repeats.processes)]
            names += [f"{row.name}: {step}" for step in ("quality", "retrieval", "peers", *memory)]
        return names

    def _tell(self, what: str) -> None:
        n_done = sum(name in self.journal.results for name in self._names)
        self._progress(n_done, len(self._names), what)

    def _config(self, step: str, row: Row, cases: list[str], control: str, n_process: int = 0) -> StepConfig:
        workload = self.workload
        return StepConfig(
            step=step,
            n_process=n_process,
            model=str(self.model),
            texts=self.texts,
            is_synthetic=workload.is_synthetic,
            n_prompt_tokens=workload.n_prompt_tokens,
            type_k=row.type_k,
            type_v=row.type_v,
            n_batch=workload.n_batch,
            n_threads=workload.n_threads,
            n_gpu_layers=workload.n_gpu_layers,
            swa_full=workload.swa_full,
            folder=str(self._folder(row)),
            tokens_folder=str(self.work),
            cases=cases,
            control=control,
            repeats=workload.repeats,
            steps=workload.steps,
        )

    def _folder(self, row: Row) -> Path:
        return self.work / row.name.replace("/", "-")

    def _step(self, name: str, config: StepConfig) -> dict[str, Any]:
        """The result of a step: out of the journal, or by running it."""
        if name in self.journal.results:
            return self.journal.results[name]
        self._tell(name)
        t_start = time.monotonic()
        result = run_step(config, name)
        self.journal.add(name, result, took_s=time.monotonic() - t_start)
        return result

    def tokens(self) -> dict[str, Any]:
        """The text's facts; its tokens lie in the run's folder."""
        if "tokens" in self.journal.results and not (self.work / "prompt.npy").exists():
            self.journal.drop("tokens")
        return self._step("tokens", self._config("tokens", Row("f16", "f16"), [], NATIVE))

    def row(self, row: Row) -> RowEvidence:
        """All steps of a row; its files are removed at the end."""
        folder = self._folder(row)
        results = self.journal.results
        own = [name for name in self._names if name.startswith(f"{row.name}: ")]
        prepared = results.get(f"{row.name}: prepare")
        is_done = prepared is not None and (prepared["status"] == "unsupported" or all(name in results for name in own))
        if not is_done:
            if prepared is not None and not self._has_files(prepared, folder):
                # what was measured of files that are gone is of no use beside new ones
                self.journal.drop(f"{row.name}: ")
            folder.mkdir(parents=True, exist_ok=True)
            self._measure(row, folder)
        shutil.rmtree(folder, ignore_errors=True)
        return assemble_row(
            row, {name.partition(": ")[2]: results[name] for name in own if name in results}, self.workload
        )

    def _has_files(self, prepared: dict[str, Any], folder: Path) -> bool:
        saved = {case: facts for case, facts in prepared["files"].items() if not facts["refusal"]}
        return (folder / "logits.npy").exists() and all(
            (folder / file_name(case)).exists() and (folder / file_name(case)).stat().st_size == facts["file_bytes"]
            for case, facts in saved.items()
        )

    def _measure(self, row: Row, folder: Path) -> None:
        every = [LLAMA, NATIVE, NATIVE_ARCHIVE, *self.workload.profiles]
        prepared = self._step(f"{row.name}: prepare", self._config("prepare", row, every, NATIVE))
        if prepared["status"] == "unsupported":
            return
        cases = [case for case, facts in prepared["files"].items() if not facts["refusal"]]
        (folder / "greedy.json").write_text(json.dumps(prepared["greedy"]))
        control = prepared["control"]
        for i in range(self.workload.repeats.processes):
            self._step(f"{row.name}: timing {i}", self._config("timing", row, cases, control, i))
        for step in ("quality", "retrieval", "peers"):
            self._step(f"{row.name}: {step}", self._config(step, row, cases, control))
        if can_measure_memory():
            for action in ("restore", "save"):
                self._memory(row, action, cases, control)

    def _memory(self, row: Row, action: str, cases: list[str], control: str) -> None:
        name = f"{row.name}: memory {action}"
        if name in self.journal.results:
            return
        self._tell(name)
        config = self._config("memory", row, cases, control)
        if action == "save":
            cases = [case for case in cases if case != NATIVE_ARCHIVE]  # not made by a save
        peaks, transients = {}, {}
        t_start = time.monotonic()
        for case in cases:
            path = config.path(case)
            peak = measure_memory(
                model=self.model,
                n_ctx=config.n_ctx,
                n_threads=config.n_threads,
                action=action,
                kind="llama" if case == LLAMA else case,
                path=path if action == "restore" else path.with_suffix(".again"),
                fill=config.path(control),
                fill_kind="llama" if control == LLAMA else control,
                type_k=row.type_k,
                type_v=row.type_v,
                swa_full=config.swa_full,
                n_gpu_layers=config.n_gpu_layers,
            )
            path.with_suffix(".again").unlink(missing_ok=True)
            peaks[case] = peak.peak_bytes
            transients[case] = peak.transient_bytes if case != LLAMA else None
        result = {"peak_bytes": peaks, "transient_bytes": transients}
        self.journal.add(name, result, took_s=time.monotonic() - t_start)


def run_step(config: StepConfig, name: str) -> dict[str, Any]:
    """A step in a process of its own.

    Raises:
        QualifyError: it failed; the message holds its own words.
    """
    path = Path(config.tokens_folder) / "step.json"
    path.write_bytes(msgspec.json.encode(config))
    command = [sys.executable, "-m", "llama_cachegen.qualify.worker", str(path)]
    process = subprocess.run(command, capture_output=True, text=True, errors="replace")
    lines = process.stdout.splitlines()
    if process.returncode != 0 or not lines:
        tail = "\n".join(process.stderr.splitlines()[-5:])
        raise QualifyError(f"step {name!r} ended with status {process.returncode}:\n{tail}")
    record = json.loads(lines[-1])
    if "error" in record:
        raise QualifyError(f"step {name!r}: {record['error']}")
    result: dict[str, Any] = record["result"]
    return result


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(msgspec.to_builtins(value), sort_keys=True).encode()).hexdigest()


def _run_folder(workload: Workload, work: Path, is_quick: bool) -> Path:
    return work / (f"{workload.name}-quick" if is_quick else workload.name)


def run_qualification(
    workload: Workload,
    *,
    is_quick: bool = False,
    work: Path,
    tree: Path,
    resume: bool = False,
    restart: bool = False,
    progress: Progress = lambda _done, _total, _what: None,
) -> Certificate:
    """Measure a workload and decide. Nothing is written but in `work`: the certificate is the caller's to publish.

    Args:
        workload: as declared; with is_quick, what its quick table makes of it.
        is_quick: see there.
        work: folder of the run's files and its journal; files of some GiB for a time.
        tree: the source tree whose commit is named, if it is one.
        resume: go on with a run that was interrupted.
        restart: drop what an interrupted run left.
        progress: called before every step.

    Raises:
        WorkloadError: the model or the text is not what the workload declares.
        JournalError: an interrupted run is in the way, or is of another setting.
        QualifyError: a step failed.
    """
    if is_quick:
        workload = workload.made_quick()
    work = _run_folder(workload, work, is_quick)
    if restart:
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    model, model_facts = _find_model(workload, work)
    software = Software.here(tree)
    hardware = Hardware.here(work, can_offload=workload.n_gpu_layers > 0)
    setting = {
        "workload": _digest(workload),
        "code": _digest(software),
        "hardware": _digest(hardware),
        "model": model_facts.sha256,
    }
    journal = Journal(work / "journal.jsonl", setting, resume=resume)
    try:
        load_start = list(os.getloadavg())
        journal.started(_now_utc())
        run = _Run(workload, model, journal, work, progress, workload.texts)
        text = msgspec.convert(run.tokens(), TextFacts)
        rows = [run.row(row) for row in workload.typed_rows]
        conditions = Conditions(
            started_utc=journal.started_utc,
            ended_utc=_now_utc(),
            duration_s=round(journal.took_s, 1),
            load_start=load_start,
            load_end=list(os.getloadavg()),
            n_resumes=journal.n_resumes,
            is_niced=os.nice(0) > 0,
        )
        empty_ms = _empty_ms(journal.results)
    finally:
        journal.close()
    return assemble_certificate(
        is_quick=is_quick,
        software=software,
        hardware=hardware.of_cache({name for row in rows for name in row.component_backends}),
        model=model_facts,
        text=text,
        workload=workload.without_paths(),
        conditions=conditions,
        empty_ms=empty_ms,
        rows=rows,
    )


def forget_run(workload: Workload, work: Path, *, is_quick: bool) -> None:
    """Remove the files of a run whose certificate is written."""
    shutil.rmtree(_run_folder(workload, work, is_quick), ignore_errors=True)


def _empty_ms(results: dict[str, dict[str, Any]]) -> list[float]:
    values: list[float] = []
    for step in results.values():
        values += step.get("empty_ms", [])
    return values
