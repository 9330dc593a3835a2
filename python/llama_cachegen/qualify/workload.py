"""What is qualified: a model, a text, typed rows, repeats and thresholds, declared in one TOML file."""

from __future__ import annotations

import os
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from ..codec import PROFILES
from ..errors import ContextError, WorkloadError
from ..ggml_types import GgmlType

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Quick", "Repeats", "Row", "Steps", "Thresholds", "Workload", "load_workload", "workload_names"]

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,47}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Types of the K and the V cache that are asked for."""

    type_k: str
    type_v: str

    @property
    def name(self) -> str:
        """For example "q8_0/f16"."""
        return f"{self.type_k}/{self.type_v}"

    @classmethod
    def parse(cls, text: str) -> Row:
        """Of "q8_0/f16".

        Raises:
            WorkloadError: not two types of a KV cache.
        """
        type_k, slash, type_v = text.partition("/")
        try:
            if not slash:
                raise ContextError("two types joined by / are wanted")
            return cls(GgmlType.parse(type_k).type_name, GgmlType.parse(type_v).type_name)
        except ContextError as error:
            raise WorkloadError(f"row {text!r}: {error}") from None


class Repeats(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How often things are measured.

    Attributes:
        processes: fresh processes a row is measured in; each is one repeat, in an order of its own.
        warm_rounds: restores of each case in one process with files in the page cache, after a discarded round.
        cold_rounds: the same with files dropped from it.
        save_rounds: saves of each case in one process, after a discarded round.
        decode_steps: tokens decoded and timed after every warm restore.
        peer_rounds: compressions and decompressions by each peer, after a discarded one.
    """

    processes: int
    warm_rounds: int
    cold_rounds: int
    save_rounds: int
    decode_steps: int
    peer_rounds: int


class Steps(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much of the model's answers is compared.

    Attributes:
        forced: teacher-forced tokens of the text after the prompt.
        forced_first: the first of them, counted apart.
        free: greedy tokens, each fed back.
        retrieval_tokens: length of a retrieval prompt; 0: no retrieval, because the model has no words.
        retrieval_tasks: of each kind.
    """

    forced: int
    forced_first: int
    free: int
    retrieval_tokens: int
    retrieval_tasks: int


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an archive must reach. docs/qualification.md says what each is compared with."""

    size_of_native_max: float
    warm_ttft_of_control_max: float
    cold_ttft_of_control_max: float
    ttft_of_recompute_max: float
    decode_p99_of_control_max: float
    save_of_llama_state_max: float
    encode_of_recompute_max: float
    restore_memory_over_file_bytes_max: int
    save_memory_bytes_max: int
    agreement_first_min: float
    agreement_min: float
    kl_mean_nats_max: float
    perplexity_change_max: float
    retrieval_lost_max: int
    spread_max: float
    others_cores_max: float
    harness_cost_max: float
    cold_resident_percent_max: float


class Quick(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `--quick` puts in place of the workload's own numbers."""

    n_prompt_tokens: int
    n_threads: int = 0
    rows: list[str]
    profiles: list[str]
    repeats: Repeats
    steps: Steps


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A workload.

    Attributes:
        name: letters, digits, "." and "-".
        description: in a sentence.
        model: name of a fetched model, a path of a GGUF file, or "shape:NAME" for a model of random weights.
        model_sha256: of the file; "" if any will do.
        texts: names of texts that come with Python, or paths; joined by an empty line. Of a shape: none, its tokens
            are random.
        n_prompt_tokens: tokens of the prompt.
        n_batch: tokens of a batch of the prompt.
        n_threads: of the engine; 0: all cores.
        n_gpu_layers: layers on the accelerator, and their part of the cache with them; 0: none.
        swa_full: of models with a sliding window: keep all positions.
        rows: the typed rows, as in "q8_0/f16".
        profiles: archives that are measured.
        required_profiles: those of them whose pass is the row's.
        quick: see there.
    """

    name: str
    description: str
    model: str
    model_sha256: str
    texts: list[str]
    n_prompt_tokens: int
    n_batch: int = 512
    n_threads: int = 0
    n_gpu_layers: int = 0
    swa_full: bool = False
    rows: list[str]
    profiles: list[str]
    required_profiles: list[str]
    repeats: Repeats
    steps: Steps
    thresholds: Thresholds
    quick: Quick

    @property
    def is_synthetic(self) -> bool:
        """The model's weights are random."""
        return self.model.startswith("shape:")

    @property
    def typed_rows(self) -> list[Row]:
        """The rows, parsed."""
        return [Row.parse(text) for text in self.rows]

    def without_paths(self) -> Workload:
        """The workload for a certificate: of the user's own files only the names."""
        return msgspec.structs.replace(
            self, model=Path(self.model).name, texts=[Path(text).name for text in self.texts]
        )

    def made_quick(self) -> Workload:
        """The workload with the numbers of its `quick` table."""
        return msgspec.structs.replace(
            self,
            n_prompt_tokens=self.quick.n_prompt_tokens,
            n_threads=self.quick.n_threads,
            rows=self.quick.rows,
            profiles=self.quick.profiles,
            required_profiles=[name for name in self.required_profiles if name in self.quick.profiles],
            repeats=self.quick.repeats,
            steps=self.quick.steps,
        )


def workload_names() -> list[str]:
    """The workloads that come with the package."""
    folder = resources.files(__package__).joinpath("workloads")
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_workload(name_or_path: str | os.PathLike[str]) -> Workload:
    """One of `workload_names`, or a TOML file.

    Raises:
        WorkloadError: neither, or a declaration that contradicts itself; the message says where.
        OSError: the file cannot be read.
    """
    text = os.fspath(name_or_path)
    if text in workload_names():
        data = resources.files(__package__).joinpath("workloads").joinpath(f"{text}.toml").read_bytes()
    else:
        if not Path(text).is_file():
            raise WorkloadError(f"{text}: no such file and not one of: {', '.join(workload_names())}")
        data = Path(text).read_bytes()
    try:
        declared: Any = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise WorkloadError(f"{text} is not TOML: {error}") from None
    try:
        workload = msgspec.convert(declared, Workload)
    except msgspec.ValidationError as error:
        raise WorkloadError(f"{text}: {error}") from None
    check_workload(workload, text)
    return workload


def check_workload(workload: Workload, where: str) -> None:
    """What the types of the fields do not say.

    Raises:
        WorkloadError: a field that cannot be; the message names it.
    """

    def need(condition: bool, field: str, words: str) -> None:
        if not condition:
            raise WorkloadError(f"{where}: {field} {words}")

    need(bool(_NAME.fullmatch(workload.name)), "name", f"{workload.name!r} is not made of a-z, 0-9, '.' and '-'")
    need(
        workload.model_sha256 == "" or bool(_SHA256.fullmatch(workload.model_sha256)),
        "model_sha256",
        "is not 64 hex digits",
    )
    need(workload.n_gpu_layers >= 0, "n_gpu_layers", "is below 0")
    need(bool(workload.texts) != workload.is_synthetic, "texts", "are needed for a model, and not for a shape")
    for prefix, one in (("", workload), ("quick.", workload.made_quick())):
        need(one.n_prompt_tokens >= 64, f"{prefix}n_prompt_tokens", f"is {one.n_prompt_tokens}, at least 64 are needed")
        need(bool(one.rows), f"{prefix}rows", "is empty")
        need(len({row.name for row in one.typed_rows}) == len(one.rows), f"{prefix}rows", "has one row twice")
        for name in one.profiles:
            need(name in PROFILES, f"{prefix}profiles", f"has {name!r}; choose from {', '.join(PROFILES)}")
        need(bool(one.required_profiles), "required_profiles", f"has none of {prefix}profiles")
        need(set(one.required_profiles) <= set(one.profiles), "required_profiles", f"are not all in {prefix}profiles")
        steps, repeats = one.steps, one.repeats
        need(0 < steps.forced_first <= steps.forced, f"{prefix}steps.forced_first", "is not 1 to steps.forced")
        need(steps.free > 0, f"{prefix}steps.free", "is not above 0")
        need(
            steps.retrieval_tokens == 0 or steps.retrieval_tokens >= 256,
            f"{prefix}steps.retrieval_tokens",
            "is below 256",
        )
        for field in Repeats.__struct_fields__:
            need(getattr(repeats, field) >= 1, f"{prefix}repeats.{field}", "is not above 0")
