"""What a step's process is told."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..engine import Engine
from . import cases
from .workload import Repeats, Steps

__all__ = ["StepConfig"]


class StepConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one row.

    Attributes:
        step: its name, one of `worker.STEPS`.
        n_process: number of the repeat, from 0.
        model: GGUF file.
        texts: of the prompt.
        folder: of the row's files.
        tokens_folder: where the prompt's tokens are.
        cases: those that restore and were saved; all of them, in steps that find out.
    """

    step: str
    n_process: int
    model: str
    texts: list[str]
    is_synthetic: bool
    n_prompt_tokens: int
    type_k: str
    type_v: str
    n_batch: int
    n_threads: int
    n_gpu_layers: int
    swa_full: bool
    folder: str
    tokens_folder: str
    cases: list[str]
    control: str
    repeats: Repeats
    steps: Steps

    @property
    def n_ctx(self) -> int:
        """Room for the prompt and everything that is evaluated after it."""
        return self.n_prompt_tokens + max(self.steps.forced, self.steps.free, 64) + 16

    def new_engine(self, n_ctx: int | None = None) -> Engine:
        """See `cases.new_engine`."""
        return cases.new_engine(
            Path(self.model),
            self.type_k,
            self.type_v,
            n_ctx or self.n_ctx,
            self.n_batch,
            self.n_threads,
            self.n_gpu_layers,
            self.swa_full,
        )

    def path(self, case: str) -> Path:
        """The file of a case."""
        return Path(self.folder) / cases.file_name(case)
