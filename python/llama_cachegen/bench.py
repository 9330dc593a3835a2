"""Benchmark of page copies in memory: against memcpy of the same bytes and against llama.cpp's state functions.

Every case is measured in the same interleaved rounds, all buffers touched before, and reported as a median with the
smallest and largest value. Ratios are ratios of medians of one run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import _binding, llama_state
from ._binding import ffi, lib
from .demo import demo_text
from .engine import Engine
from .session import Session

N_TOKENS = 4000
N_ROUNDS = 15


class _NativePage:
    """The native calls without any Python around them: buffers are allocated and touched once."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.n_tokens = session.n_tokens
        self.ctx = session.engine._native_ctx
        info = _binding.describe(self.ctx, session.seq_id, 0, self.n_tokens)
        self.n_components = int(info.n_components)
        self.records = ffi.new("struct llama_kv_page_component[]", self.n_components)
        self.records_without_digest = ffi.new("struct llama_kv_page_component[]", self.n_components)
        self.payload = np.zeros(info.payload_bytes, dtype=np.uint8)
        self.payload[:] = 1
        self.pointer = ffi.from_buffer(self.payload, require_writable=True)
        self.stats = _binding.new_struct("llama_kv_page_stats")

    def export(self, n_threads: int, digest: bool) -> None:
        _binding.check(
            lib.llama_kv_page_export(
                self.ctx,
                self.session.seq_id,
                0,
                self.n_tokens,
                self.pointer,
                self.payload.nbytes,
                self.records if digest else self.records_without_digest,
                self.n_components,
                _binding.new_options(n_threads, digest=digest),
                self.stats,
            )
        )

    def import_into(self, seq_id: int, n_threads: int, digest: bool) -> None:
        _binding.check(
            lib.llama_kv_page_import(
                self.ctx,
                seq_id,
                0,
                self.records,
                self.n_components,
                self.pointer,
                self.payload.nbytes,
                _binding.new_options(n_threads, digest=digest),
                self.stats,
            )
        )


def _measure(
    cases: dict[str, Callable[[], None]], after: dict[str, Callable[[], None]], n_rounds: int
) -> dict[str, list[float]]:
    names = list(cases)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for i in range(n_rounds + 1):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            t_start = time.perf_counter()
            cases[name]()
            elapsed_ms = (time.perf_counter() - t_start) * 1000
            after.get(name, lambda: None)()
            if i > 0:  # round 0 warms up
                samples[name].append(elapsed_ms)
    return samples


def _fragment(engine: Engine, tokens: list[int], n_run: int = 8) -> Session:
    """A session whose cells alternate, n_run at a time, with as many free ones, and with no room elsewhere."""
    first, second = engine.session(), engine.session()
    for begin in range(0, len(tokens), n_run):
        first.prefill(tokens[begin : begin + n_run])
        second.prefill(tokens[begin : begin + n_run])
    second.close()
    return first


def _bench_layout(
    model: Path, *, flash_attn: bool, fragmented: bool, n_tokens: int, n_rounds: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    n_tokens = n_tokens if not fragmented else n_tokens // 4
    layout = ("rows" if flash_attn else "transposed V") + (", fragmented" if fragmented else "")
    progress(f"evaluating {n_tokens} tokens ({layout})")
    with Engine(
        model,
        n_ctx=n_tokens + 16,
        n_seq_max=2,
        kv_unified=True,
        flash_attn=flash_attn,
        type_k="f16",
        type_v="f16",
    ) as engine:
        tokens = engine.tokenize(demo_text())[:n_tokens].tolist()
        if fragmented:
            source = _fragment(engine, tokens)
        else:
            source = engine.session()
            source.prefill(tokens)
        n_threads = engine.n_threads
        page = _NativePage(source)
        page.export(n_threads, True)
        n_source_runs = int(page.stats.n_cell_runs)

        copy_source = page.payload.copy()
        copy_target = np.ones_like(copy_source)
        state = np.ones(llama_state.size(source), dtype=np.uint8)
        target = engine.session()

        def clear() -> None:
            target.clear()

        def set_state() -> None:
            if llama_state.set_data(target, state, state.nbytes) == 0:
                raise RuntimeError("llama_state_seq_set_data failed")

        if llama_state.get_data(source, state) == 0:
            raise RuntimeError("llama_state_seq_get_data failed")
        cases: dict[str, Callable[[], None]] = {
            "memcpy": lambda: np.copyto(copy_target, copy_source),
            "export, 1 thread": lambda: page.export(1, False),
            "export": lambda: page.export(0, False),
            "export + digest": lambda: page.export(0, True),
            "llama_state_seq_get_data": lambda: _ignore(llama_state.get_data(source, state)),
            "import, 1 thread": lambda: page.import_into(target.seq_id, 1, False),
            "import": lambda: page.import_into(target.seq_id, 0, False),
            "import + digest": lambda: page.import_into(target.seq_id, 0, True),
            "llama_state_seq_set_data": set_state,
        }
        after: dict[str, Callable[[], None]] = {
            name: clear for name in cases if name.startswith("import") or name.endswith("set_data")
        }
        progress(f"measuring {layout}, {n_rounds} rounds")
        page.export(0, True)
        page.import_into(target.seq_id, 0, True)
        n_target_runs = int(page.stats.n_cell_runs)
        clear()
        samples = _measure(cases, after, n_rounds)

        medians = {name: statistics.median(values) for name, values in samples.items()}
        rows = []
        for name, values in samples.items():
            rival = "llama_state_seq_get_data" if "export" in name else "llama_state_seq_set_data"
            rows.append(
                {
                    "layout": layout,
                    "case": name,
                    "median_ms": medians[name],
                    "min_ms": min(values),
                    "max_ms": max(values),
                    "of_memcpy": medians[name] / medians["memcpy"],
                    "speedup_over_llama_state": (
                        medians[rival] / medians[name] if name.startswith(("export", "import")) else None
                    ),
                }
            )
        return {
            "layout": layout,
            "payload_bytes": int(page.payload.nbytes),
            "n_tokens": n_tokens,
            "n_source_runs": n_source_runs,
            "n_target_runs": n_target_runs,
            "n_threads": n_threads,
            "rows": rows,
        }


def _ignore(_value: object) -> None:
    return None


def _bench_overhead(model: Path, n_rounds: int) -> list[dict[str, Any]]:
    """What Python adds to a native call: the smallest native call, and a page of one token end to end."""
    with Engine(model, n_ctx=256) as engine, engine.session() as session:
        session.prefill(engine.tokenize("Hello")[:1])
        page = _NativePage(session)
        n_calls = 200

        def native() -> None:
            for _ in range(n_calls):
                lib.llama_kv_page_abi_version()

        def native_export() -> None:
            for _ in range(n_calls):
                page.export(1, True)

        def python_export() -> None:
            for _ in range(n_calls):
                session.export_page(n_threads=1)

        samples = _measure(
            {
                "empty native call": native,
                "native export, 1 token": native_export,
                "Session.export_page, 1 token": python_export,
            },
            {},
            n_rounds,
        )
    return [
        {
            "case": name,
            "median_us": statistics.median(values) * 1000 / n_calls,
            "min_us": min(values) * 1000 / n_calls,
            "max_us": max(values) * 1000 / n_calls,
        }
        for name, values in samples.items()
    ]


def run(
    *, model: Path, n_tokens: int = N_TOKENS, n_rounds: int = N_ROUNDS, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """All cases; times in ms (µs for the overhead), sizes in bytes."""
    layouts = [
        _bench_layout(
            model, flash_attn=flash_attn, fragmented=fragmented, n_tokens=n_tokens, n_rounds=n_rounds, progress=progress
        )
        for fragmented in (False, True)
        for flash_attn in (True, False)
    ]
    progress("measuring the overhead of a call")
    return {"model": model.name, "n_rounds": n_rounds, "layouts": layouts, "overhead": _bench_overhead(model, n_rounds)}
