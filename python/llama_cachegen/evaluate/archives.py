"""How fast archives are saved and restored, what memory that takes, and the tokens that follow.

Beside native pages, llama.cpp's own state files and a plain copy, in interleaved rounds of one run: a round runs every
case of a group once, in a shuffled order (the same ones in every run), so that no case always has the same one before
it, whose freed memory it takes; the first round is dropped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import os
import platform
import random
import shutil
import statistics
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import llama_state
from ..archive_file import ArchiveFile
from ..codec import Archive, Plane
from ..engine import Engine
from ..errors import CachegenError, UnsupportedMemoryError
from ..ggml_types import GgmlType
from ..models import resolve_model
from ..page import Page
from ..receipts import RestoreReceipt, SaveReceipt
from ..session import Session
from .archive_memory import PeakMemory, can_measure_memory, measure_memory
from .machine import OthersWatch, drop_from_page_cache, file_system_of, governor, sync_file
from .report import ModelFile, Setting, markdown_table, setting_lines
from .texts import Text

__all__ = ["ArchivesReport", "GreedyRow", "MemoryRow", "TimeRow", "measure_archives"]

N_TOKENS = 7000
N_ROUNDS = 7
N_GREEDY_TOKENS = 64
PROFILES = ("balanced", "lmcache", "exact")

_NATIVE = "native page"
_LLAMA = "llama.cpp state file"
_MEMCPY = "memcpy"
_DECODE = "codec decode"
_CASES = (_NATIVE, _LLAMA, *PROFILES)
_QUIET_CORES = 0.05

_GOAL_OF_CODEC = 0.8
_GOAL_OF_MEMCPY = 6.0
_GOAL_TRANSIENT_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Spread:
    """Of the rounds."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.1f} ({self.min:.1f}–{self.max:.1f})"


@dataclasses.dataclass(frozen=True)
class TimeRow:
    """One case.

    Attributes:
        group: "warm", "cold" or "save".
        case: a profile, or what it is compared with.
        n_threads: threads it used.
        ms: keys "total_ms" and the phases of the receipt.
    """

    group: str
    case: str
    n_threads: int
    ms: dict[str, Spread]

    @property
    def total(self) -> Spread:
        """Of the whole call."""
        return self.ms["total_ms"]


@dataclasses.dataclass(frozen=True)
class MemoryRow:
    """One save or restore in a process of its own."""

    action: str
    case: str
    file_bytes: int
    peak: PeakMemory


@dataclasses.dataclass(frozen=True)
class GreedyRow:
    """The tokens after a restore beside those of the session that went on.

    Attributes:
        n_equal: of n_greedy_tokens; None if the model's memory cannot be saved that way.
        first_difference: the first token that differs, from 0; None if none does.
        is_same_again: of an exact archive: the restored session, saved again, gave a file of the same bytes.
        refusal: why it cannot be saved.
    """

    model: str
    case: str
    n_greedy_tokens: int
    n_equal: int | None
    first_difference: int | None
    is_same_again: bool | None
    refusal: str


@dataclasses.dataclass(frozen=True)
class Machine:
    """What else bears on the figures.

    Attributes:
        load_start, load_end: load averages (1, 5 and 15 minutes) before and after the run.
        others_cores: what other processes and the host used while times were taken; None if that is not known.
        governor: of the first core's clock, or "unknown".
        file_system: where the files were written.
        kernel: of the system.
    """

    load_start: tuple[float, float, float]
    load_end: tuple[float, float, float]
    others_cores: float | None
    governor: str
    file_system: str
    kernel: str


@dataclasses.dataclass(frozen=True)
class ArchivesReport:
    """All cases of one run."""

    setting: Setting
    machine: Machine
    models: list[ModelFile]
    text: Text
    n_tokens: int
    n_values: int
    native_bytes: int
    n_rounds: int
    n_threads: int
    file_bytes: dict[str, int]
    cold_resident_percent: float
    times: list[TimeRow]
    memory: list[MemoryRow]
    greedy: list[GreedyRow]

    def time(self, group: str, case: str, n_threads: int) -> TimeRow:
        """A row.

        Raises:
            KeyError: there is none.
        """
        for row in self.times:
            if (row.group, row.case, row.n_threads) == (group, case, n_threads):
                return row
        raise KeyError((group, case, n_threads))

    def of_codec(self, profile: str, n_threads: int) -> tuple[float, float]:
        """Rate of decoding into the cache over the codec's own, without and with reserving the cells."""
        own = self.time("warm", f"{_DECODE}, {profile}", n_threads).total.median
        ms = self.time("warm", profile, n_threads).ms
        return own / ms["copy_ms"].median, own / (ms["copy_ms"].median + ms["reserve_ms"].median)

    def goals(self) -> list[tuple[str, bool]]:
        """What was to be reached, with the figures, and whether it was."""
        goals = []
        for profile in PROFILES:
            for n_threads in self._thread_counts():
                ratio = self.of_codec(profile, n_threads)[1]
                words = (
                    f"{profile}, {_threads(n_threads)}: decoded into the cache at {ratio:.2f} of the codec's own rate"
                )
                goals.append((f"{words}, at least {_GOAL_OF_CODEC}", ratio >= _GOAL_OF_CODEC))
        memcpy = self.time("warm", _MEMCPY, 1).total.median
        ratio = self.time("warm", "balanced", self.n_threads).total.median / memcpy
        words = f"warm restore of balanced: {ratio:.1f} times memcpy, at most {_GOAL_OF_MEMCPY:.0f}"
        goals.append((words, ratio <= _GOAL_OF_MEMCPY))
        cold = {case: self.time("cold", case, n).total.median for case, n in self._file_cases()}
        for profile in PROFILES:
            words = f"cold restore of {profile}: {cold[profile]:.1f} ms, faster than a native page"
            goals.append((f"{words} ({cold[_NATIVE]:.1f} ms)", cold[profile] < cold[_NATIVE]))
        llama = self.time("save", _LLAMA, 1).ms["write_ms"]
        for profile in PROFILES:
            own = self.time("save", profile, self.n_threads).ms["export_ms"].median
            words = f"{profile}: encoded and written in {own:.1f} ms, no slower than llama.cpp's save at its fastest"
            goals.append((f"{words} ({llama.min:.1f} ms; its median {llama.median:.1f} ms)", own <= llama.min))
        for row in self.memory:
            if row.case not in PROFILES:
                continue
            limit = _GOAL_TRANSIENT_BYTES + (row.file_bytes if row.action == "restore" else 0)
            words = f"{row.action} of {row.case}: peak of {_mib(row.peak.peak_bytes)}, at most {_mib(limit)}"
            goals.append((words, row.peak.peak_bytes <= limit))
        for one in self.greedy:
            if one.case in ("exact", _NATIVE) and one.n_equal is not None:
                words = f"{one.model}, {one.case}: {one.n_equal} of {one.n_greedy_tokens} tokens equal, all"
                if one.is_same_again and one.n_equal < one.n_greedy_tokens:
                    words += " (every value is the same: the restored cache, saved again, gives the same bytes)"
                goals.append((words, one.n_equal == one.n_greedy_tokens))
        return goals

    def _thread_counts(self) -> list[int]:
        return sorted({1, self.n_threads})

    def _file_cases(self) -> list[tuple[str, int]]:
        return [(case, 1 if case == _LLAMA else self.n_threads) for case in _CASES]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; the text without its words."""
        result = dataclasses.asdict(self)
        del result["text"]["text"]
        result["goals"] = [{"goal": words, "is_reached": is_reached} for words, is_reached in self.goals()]
        return result

    def markdown(self) -> str:
        """A page with tables."""
        load = ", ".join(f"{value:.2f}" for value in self.machine.load_start)
        load_end = ", ".join(f"{value:.2f}" for value in self.machine.load_end)
        lines = [
            "# Saving and restoring archives",
            "",
            *_wrapped(
                "Printed by `llama-cachegen bench archives`. F16 K and V in rows (flash attention), on the CPU. "
                "Times in ms: medians of interleaved rounds with smallest and largest. Ratios are ratios of "
                "medians of this run."
            ),
            "",
            *setting_lines(self.setting),
            f"- clock governor {self.machine.governor}; {self.machine.kernel}, files on {self.machine.file_system}",
            f"- load average (1, 5, 15 minutes) at the start {load}, at the end {load_end}",
            f"- {_busy_words(self.machine)}",
            f"- model: {self.models[0].name}, SHA-256 {self.models[0].sha256}",
            *(f"- greedy tokens also: {one.name}, SHA-256 {one.sha256}" for one in self.models[1:]),
            f"- text: {self.text.name} ({self.text.description}), SHA-256 {self.text.sha256}",
            f"- page: {self.n_tokens:,} tokens, {self.n_values:,} F16 values, {self.native_bytes:,} native bytes;"
            f" {self.n_rounds} rounds",
            f"- files: {', '.join(f'{case} {n:,} bytes' for case, n in self.file_bytes.items())}",
            "",
            *self._import_lines(),
            *self._warm_lines(),
            *self._cold_lines(),
            *self._save_lines(),
            *self._memory_lines(),
            *self._greedy_lines(),
            "## Goals",
            "",
            *markdown_table(
                ("goal", "reached"),
                [(words, "yes" if is_reached else "**no: missed**") for words, is_reached in self.goals()],
                n_left=2,
            ),
        ]
        return "\n".join(lines) + "\n"

    def _rate(self, ms: float) -> str:
        return f"{self.n_values / ms / 1e6:.3f}"

    def _import_lines(self) -> list[str]:
        rows = []
        for profile in PROFILES:
            for n_threads in self._thread_counts():
                code = self.time("warm", profile, n_threads).ms["copy_ms"]
                own = self.time("warm", f"{_DECODE}, {profile}", n_threads).total
                code_only, with_reserve = self.of_codec(profile, n_threads)
                cells = (str(code), self._rate(code.median), str(own), self._rate(own.median))
                rows.append((profile, str(n_threads), *cells, f"{code_only:.2f}", f"{with_reserve:.2f}"))
        return [
            "## Decoding into the cache",
            "",
            *_wrapped(
                "import: decoding by the native import (its `code_ms`). codec: `Archive.decode` of the same "
                "archive into arrays of F16 rows that were touched before. Warm. G/s: 10⁹ values a second. The "
                "codec's time has in it what the import does while it reserves cells (tables of the entropy "
                f"coder), so the last column adds that to the import's; the goal of {_GOAL_OF_CODEC} is held "
                "against the last column."
            ),
            "",
            *markdown_table(
                ("profile", "threads", "import ms", "G/s", "codec ms", "G/s", "import / codec", "with reserve"), rows
            ),
            "",
        ]

    def _restore_cells(self, row: TimeRow, reference: float) -> tuple[str, ...]:
        phases = [f"{row.ms[name].median:.1f}" if name in row.ms else "" for name in _RESTORE_PHASES]
        return (row.case, str(row.n_threads), str(row.total), *phases, f"{row.total.median / reference:.1f}")

    def _warm_lines(self) -> list[str]:
        reference = self.time("warm", _MEMCPY, 1).total.median
        rows = [row for row in self.times if row.group == "warm" and not row.case.startswith(_DECODE)]
        return [
            "## Warm restore",
            "",
            *_wrapped(
                "`Session.restore` of a file in the page cache into cells used before, "
                "`llama_state_seq_load_file` the same, and `numpy.copyto` of the page's native bytes. Restores of "
                "archives and pages check digests, llama.cpp's does not. Phases are medians. Goal: balanced "
                "within 6 times memcpy."
            ),
            "",
            *markdown_table(
                ("", "threads", "total", "open", "reserve", "copy or decode", "commit", "times memcpy"),
                [self._restore_cells(row, reference) for row in rows],
            ),
            "",
        ]

    def _cold_lines(self) -> list[str]:
        reference = self.time("cold", _NATIVE, self.n_threads).total.median
        return [
            "## Cold restore",
            "",
            *_wrapped(
                "Before every restore the file was dropped from the page cache: `fsync`, then `posix_fadvise` "
                f"with `POSIX_FADV_DONTNEED`; at most {self.cold_resident_percent:.1f} % of its pages were still "
                "resident then (`mincore`). Caches below the system (the disk's, a virtual machine's host's) were "
                "not dropped. Goal: archives faster than the native page."
            ),
            "",
            *markdown_table(
                ("", "threads", "total", "open", "reserve", "copy or decode", "commit", "times native page"),
                [self._restore_cells(row, reference) for row in self.times if row.group == "cold"],
            ),
            "",
        ]

    def _save_lines(self) -> list[str]:
        reference = self.time("save", _LLAMA, 1).ms["write_ms"].median
        rows = []
        for row in self.times:
            if row.group != "save":
                continue
            phases = [f"{row.ms[name].median:.1f}" if name in row.ms else "" for name in _SAVE_PHASES]
            unsynced = row.ms["unsynced_ms"]
            ratio = f"{unsynced.median / reference:.2f}"
            rows.append((row.case, str(row.n_threads), str(row.total), str(unsynced), *phases, ratio))
        return [
            "## Save",
            "",
            *_wrapped(
                "`Session.save` to a new name, and `llama_state_seq_save_file`, which does not wait for the disk: "
                "here `fsync` was called after it and timed apart. export: copying out of the cache with digests; "
                "of an archive encoding it, with the writes in it. write: of an archive a part of export. No "
                "fsync: the total less fsync. Goal: encoding and writing (export) no slower than llama.cpp's save "
                "without fsync, which uses one thread, at its fastest, because a median of files this large "
                "varies with what ran before (why was not found out)."
            ),
            "",
            *markdown_table(
                ("", "threads", "total", "no fsync", "export", "write", "fsync", "no fsync, times llama.cpp"), rows
            ),
            "",
        ]

    def _memory_lines(self) -> list[str]:
        if not self.memory:
            return []
        rows = [
            (
                row.action,
                row.case,
                *(_mib(n) for n in (row.file_bytes, row.peak.peak_bytes, row.peak.anon_bytes, row.peak.file_bytes)),
            )
            for row in self.memory
        ]
        return [
            "## Transient memory",
            "",
            *_wrapped(
                "Each in a new process, once, the engine made and the model hashed before: growth of the peak of "
                "resident memory (VmHWM, reset before the call, less VmRSS before it). Its largest parts, sampled "
                "every 0.5 ms: RssAnon (memory of the process), and RssFile (mapped file pages, which the system "
                "can drop). Goals: restore at most 64 MiB and the archive, save at most 64 MiB."
            ),
            "",
            *markdown_table(("", "file", "file size", "peak growth", "RssAnon", "RssFile"), rows, n_left=2),
            "",
        ]

    def _greedy_lines(self) -> list[str]:
        rows = []
        for row in self.greedy:
            if row.n_equal is None:
                rows.append((row.model, row.case, "refused", "", row.refusal))
                continue
            first = "none" if row.first_difference is None else str(row.first_difference)
            again = {None: "", True: "same bytes", False: "**other bytes**"}[row.is_same_again]
            rows.append((row.model, row.case, f"{row.n_equal} of {row.n_greedy_tokens}", first, again))
        return [
            "## Greedy tokens after a restore",
            "",
            *_wrapped(
                f"A session evaluates {self.n_tokens:,} tokens, is saved, evaluates one more and goes on with "
                f"{N_GREEDY_TOKENS} greedy tokens. The file is restored into a new engine of the same settings, on "
                "the same sequence id, which does the same from there. First difference: the first token that is "
                "another one, counted from 0. Saved again: an exact archive of what an exact archive restored, "
                "beside that. A window restored after it slid lies in other cells than before, so floats are "
                "summed in another order and tokens can differ though every value is the same: compare the row of "
                "llama.cpp's state file, and those with swa_full, where an archive has every position and puts "
                "each where it was."
            ),
            "",
            *markdown_table(("model", "file", "tokens equal", "first difference", "saved again"), rows, n_left=2),
            "",
        ]


_RESTORE_PHASES = ("open_ms", "reserve_ms", "copy_ms", "commit_ms")
_SAVE_PHASES = ("export_ms", "write_ms", "fsync_ms")


def _threads(n: int) -> str:
    return "1 thread" if n == 1 else f"{n} threads"


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f} MiB"


def _busy_words(machine: Machine) -> str:
    if machine.others_cores is None:
        return "how much of the processor others used is not known"
    words = f"other processes used {machine.others_cores:.2f} cores on average while times were taken"
    if machine.others_cores < _QUIET_CORES:
        return words
    return f"{words}: the machine was otherwise busy"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118, break_on_hyphens=False)


# cases


@dataclasses.dataclass(frozen=True)
class _Case:
    """run returns phases in ms; before is not timed."""

    group: str
    name: str
    n_threads: int
    run: Callable[[], dict[str, float]]
    before: Callable[[], object] = lambda: None


def _phases(receipt: RestoreReceipt | SaveReceipt, names: Sequence[str]) -> dict[str, float]:
    return {name: float(getattr(receipt, name)) for name in names}


def _restore(session: Session, path: Path, n_threads: int) -> dict[str, float]:
    receipt = session.restore(path, n_threads=n_threads)
    if not receipt.restored:
        raise CachegenError(f"{path.name} was not restored: {receipt.detail}")
    return _phases(receipt, _RESTORE_PHASES)


def _only(call: Callable[[], object]) -> dict[str, float]:
    """A call without phases."""
    call()
    return {}


def _load_state(session: Session, path: Path) -> dict[str, float]:
    llama_state.load_file(session, path)
    return {}


def _rows_like(archive: Archive) -> list[Plane]:
    planes = []
    for plane in archive.planes:
        shape = (archive.info.n_tokens, GgmlType.F16.row_bytes(plane.n_channels))
        planes.append(Plane(np.ones(shape, np.uint8), GgmlType.F16, plane.n_channels))
    return planes


def _warm_cases(session: Session, files: dict[str, Path], archives: dict[str, Archive], n: int) -> Iterator[_Case]:
    for profile in PROFILES:
        archive, path = archives[profile], files[profile]
        out = _rows_like(archive)
        for k in sorted({1, n}):
            yield _Case("warm", profile, k, partial(_restore, session, path, k), session.clear)

            decode = partial(archive.decode, out, n_threads=k)
            yield _Case("warm", f"{_DECODE}, {profile}", k, partial(_only, decode))
    for k in sorted({1, n}):
        yield _Case("warm", _NATIVE, k, partial(_restore, session, files[_NATIVE], k), session.clear)
    yield _Case("warm", _LLAMA, 1, partial(_load_state, session, files[_LLAMA]), session.clear)
    with Page.open(files[_NATIVE]) as page:
        source = np.frombuffer(page.payload, np.uint8).copy()
    target = np.ones_like(source)
    yield _Case("warm", _MEMCPY, 1, partial(_only, partial(np.copyto, target, source)))


def _cold_cases(session: Session, files: dict[str, Path], n: int, resident_percent: list[float]) -> Iterator[_Case]:
    def before(path: Path) -> None:
        session.clear()
        resident_percent.append(drop_from_page_cache(path))

    for name in _CASES:
        path = files[name]
        if name == _LLAMA:
            yield _Case("cold", name, 1, partial(_load_state, session, path), partial(before, path))
        else:
            yield _Case("cold", name, n, partial(_restore, session, path, n), partial(before, path))


def _save_cases(session: Session, folder: Path, n: int) -> Iterator[_Case]:
    path = folder / "saved"

    def save(profile: str | None, n_threads: int) -> dict[str, float]:
        receipt = session.save(path, profile, n_threads=n_threads)
        phases = _phases(receipt, _SAVE_PHASES)
        return {**phases, "unsynced_ms": receipt.total_ms - receipt.fsync_ms}

    def save_state() -> dict[str, float]:
        t_start = time.perf_counter()
        llama_state.save_file(session, path)
        t_sync = time.perf_counter()
        sync_file(path)
        write_ms = (t_sync - t_start) * 1000
        return {"write_ms": write_ms, "fsync_ms": (time.perf_counter() - t_sync) * 1000, "unsynced_ms": write_ms}

    def remove() -> None:
        path.unlink(missing_ok=True)

    for profile in PROFILES:
        for k in sorted({1, n}):
            yield _Case("save", profile, k, partial(save, profile, k), remove)
    for k in sorted({1, n}):
        yield _Case("save", _NATIVE, k, partial(save, None, k), remove)
    yield _Case("save", _LLAMA, 1, save_state, remove)


def _run_rounds(
    groups: Sequence[tuple[Callable[[], object], list[_Case]]], n_rounds: int, progress: Callable[[str], None]
) -> list[TimeRow]:
    samples: dict[int, list[dict[str, float]]] = {}
    for i in range(n_rounds + 1):
        progress(f"round {i} of {n_rounds}" if i else "warming up")
        for prepare, cases in groups:
            prepare()
            for case in random.Random(i).sample(cases, len(cases)):
                case.before()
                t_start = time.perf_counter()
                phases = case.run()
                total_ms = (time.perf_counter() - t_start) * 1000
                if i > 0:
                    samples.setdefault(id(case), []).append({"total_ms": total_ms, **phases})
    return [
        TimeRow(
            case.group,
            case.name,
            case.n_threads,
            {name: Spread.of([one[name] for one in samples[id(case)]]) for name in samples[id(case)][0]},
        )
        for _, cases in groups
        for case in cases
    ]


# the run


def _new_engine(model: Path, n_ctx: int, n_threads: int, swa_full: bool) -> Engine:
    return Engine(
        model,
        n_ctx=n_ctx,
        n_threads=n_threads,
        flash_attn=True,
        type_k="f16",
        type_v="f16",
        swa_full=swa_full,
    )


def _teach(
    session: Session, tokens: NDArray[np.int32], folder: Path
) -> tuple[dict[str, Path], dict[str, str], list[int]]:
    """Evaluate all tokens but the last, save that in every way, and go on.

    Returns:
        The files, why those that are missing are, and the greedy tokens.
    """
    session.prefill(tokens[:-1])
    files: dict[str, Path] = {}
    refusals: dict[str, str] = {}
    for case in _CASES:
        path = folder / case.replace(" ", "-")
        try:
            if case == _LLAMA:
                llama_state.save_file(session, path)
                sync_file(path)
            else:
                session.save(path, None if case == _NATIVE else case)
        except UnsupportedMemoryError as error:
            refusals[case] = str(error)
        else:
            files[case] = path
    session.prefill(tokens[-1:])
    return files, refusals, list(session.generate(N_GREEDY_TOKENS, stop=False))


def _greedy_rows(
    new_engine: Callable[[], Engine],
    name: str,
    last: NDArray[np.int32],
    taught: tuple[dict[str, Path], dict[str, str], list[int]],
) -> list[GreedyRow]:
    files, refusals, teacher = taught
    rows = []
    for case in (_NATIVE, _LLAMA, "exact", "balanced", "lmcache"):
        if case not in files:
            rows.append(GreedyRow(name, case, N_GREEDY_TOKENS, None, None, None, refusals[case]))
            continue
        is_same: bool | None = None
        with new_engine() as engine, engine.session() as session:
            if case == _LLAMA:
                _load_state(session, files[case])
            else:
                _restore(session, files[case], engine.n_threads)
            if case == "exact":
                again = files[case].with_suffix(".again")
                session.save(again, "exact")
                is_same = filecmp.cmp(files[case], again, shallow=False)
            session.prefill(last)
            own = list(session.generate(N_GREEDY_TOKENS, stop=False))
        differs = [i for i, (a, b) in enumerate(zip(teacher, own, strict=True)) if a != b]
        first = differs[0] if differs else None
        rows.append(GreedyRow(name, case, N_GREEDY_TOKENS, len(teacher) - len(differs), first, is_same, ""))
    return rows


def _memory_rows(model: Path, n_ctx: int, n_threads: int, files: dict[str, Path], folder: Path) -> list[MemoryRow]:
    if not can_measure_memory():
        return []
    rows = []
    for action in ("restore", "save"):
        for case in (*PROFILES, _NATIVE, _LLAMA):
            path = files[case] if action == "restore" else folder / "saved"
            kind = {_NATIVE: "native", _LLAMA: "llama"}.get(case, case)
            peak = measure_memory(
                model=model,
                n_ctx=n_ctx,
                n_threads=n_threads,
                action=action,
                kind=kind,
                path=path,
                fill=files[_NATIVE],
            )
            rows.append(MemoryRow(action, case, files[case].stat().st_size, peak))
    return rows


def measure_archives(
    models: Sequence[str | os.PathLike[str]],
    text: Text,
    *,
    n_tokens: int = N_TOKENS,
    n_rounds: int = N_ROUNDS,
    n_threads: int = 2,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> ArchivesReport:
    """Measure every case on the F16 cache of a real text.

    Args:
        models: names of fetched models or GGUF files. Times and memory are those of the first, whose memory native
            pages must hold; greedy tokens are compared for all of them.
        text: evaluated to its first n_tokens tokens; the last one is not saved.
        n_tokens: at least 2.
        n_rounds: measured rounds, one more is dropped.
        n_threads: of the engine; archives and pages are copied with 1 and with this many.
        folder: where files of some hundred MiB are written for the time of the run; default: the one for temporary
            files.
        progress: called with what is being done.

    Raises:
        CachegenError: a model is missing, or the text is too short.
        OSError: a file cannot be written.
    """
    load_start = os.getloadavg()
    paths = [resolve_model(model) for model in models]
    n_ctx = n_tokens + N_GREEDY_TOKENS
    greedy: list[GreedyRow] = []
    memory: list[MemoryRow] = []
    times: list[TimeRow] = []
    file_bytes: dict[str, int] = {}
    resident: list[float] = []
    n_values = native_bytes = 0
    others: float | None = None
    with tempfile.TemporaryDirectory(prefix="archives-", dir=folder) as name:
        runs = [(path, False) for path in paths]
        for i, (model, swa_full) in enumerate(runs):  # grows: a sliding window is compared once more without one
            own_folder = Path(name) / str(i)
            own_folder.mkdir()
            label = f"{model.name}, swa_full" if swa_full else model.name
            new_engine = partial(_new_engine, model, n_ctx, n_threads, swa_full)
            progress(f"evaluating {n_tokens:,} tokens with {label}")
            with new_engine() as engine, engine.session() as session:
                tokens = engine.tokenize(text.text)[:n_tokens]
                if len(tokens) < n_tokens:
                    raise CachegenError(f"text {text.name} has {len(tokens):,} tokens, {n_tokens:,} are wanted")
                taught = _teach(session, tokens, own_folder)
                files = taught[0]
                if engine.capabilities().memory == "iswa" and not swa_full:
                    runs.append((model, True))
                if i == 0:
                    if _NATIVE not in files:
                        raise CachegenError(f"{model.name} cannot be measured: {taught[1][_NATIVE]}")
                    file_bytes = {case: files[case].stat().st_size for case in _CASES}
                    with Page.open(files[_NATIVE]) as page:
                        native_bytes = page.payload_bytes
                        n_values = sum(one.n_channels * one.n_tokens for one in page.components)
                    watch = OthersWatch()
                    times = _measure_times(session, files, own_folder, n_threads, n_rounds, resident, progress)
                    others = watch.cores()
            if i == 0:
                progress("measuring memory")
                memory = _memory_rows(model, n_ctx, n_threads, files, own_folder)
            progress(f"comparing greedy tokens of {label}")
            greedy += _greedy_rows(new_engine, label, tokens[-1:], taught)
            shutil.rmtree(own_folder)
        machine = Machine(
            load_start,
            os.getloadavg(),
            others,
            governor(),
            file_system_of(Path(name)),
            f"{platform.system()} {platform.release()}",
        )
    return ArchivesReport(
        setting=Setting.here(),
        machine=machine,
        models=[ModelFile.of(path) for path in paths],
        text=text,
        n_tokens=n_tokens - 1,
        n_values=n_values,
        native_bytes=native_bytes,
        n_rounds=n_rounds,
        n_threads=n_threads,
        file_bytes=file_bytes,
        cold_resident_percent=max(resident),
        times=times,
        memory=memory,
        greedy=greedy,
    )


def _measure_times(
    session: Session,
    files: dict[str, Path],
    folder: Path,
    n_threads: int,
    n_rounds: int,
    resident: list[float],
    progress: Callable[[str], None],
) -> list[TimeRow]:
    cold_folder = folder / "cold"  # copies, so that the others stay warm
    cold_folder.mkdir()
    cold = {case: Path(shutil.copy(path, cold_folder)) for case, path in files.items()}

    def fill() -> None:
        session.clear()
        _restore(session, files[_NATIVE], n_threads)

    with contextlib.ExitStack() as stack:
        archives = {
            profile: stack.enter_context(Archive(stack.enter_context(ArchiveFile(files[profile])).archive))
            for profile in PROFILES
        }
        groups: list[tuple[Callable[[], object], list[_Case]]] = [
            (session.clear, list(_warm_cases(session, files, archives, n_threads))),
            (session.clear, list(_cold_cases(session, cold, n_threads, resident))),
            (fill, list(_save_cases(session, folder, n_threads))),
        ]
        return _run_rounds(groups, n_rounds, progress)
