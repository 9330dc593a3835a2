"""A certificate: the evidence of one qualification, with every sample, and a digest that tells whether it was edited.

`encode_certificate` gives the bytes of the file. The digest is SHA-256 over the canonical JSON (RFC 8785) of everything
but `digest` and `superseded_by`. The second is written later, into a certificate that is sealed already; it is held
against the `supersedes` of the certificate it names, which is under that one's digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, Literal

import msgspec
import rfc8785

from ..errors import CertificateError
from ..page_file import replace_file
from .hardware import Hardware
from .provenance import Software
from .spread import Summary
from .workload import Workload

__all__ = [
    "SCHEMA_VERSION",
    "Case",
    "Certificate",
    "Conditions",
    "Decision",
    "Gate",
    "HarnessCost",
    "Link",
    "ModelFacts",
    "Peer",
    "Quality",
    "Retrieval",
    "RowEvidence",
    "TextFacts",
    "certificate_schema",
    "encode_certificate",
    "plain_certificate",
    "read_certificate",
    "seal",
    "write_certificate",
]

SCHEMA_VERSION = 1

_UNSEALED = ("digest", "superseded_by")
_LATER_IN_WORKLOAD = {"n_gpu_layers": 0}


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One condition.

    Attributes:
        name: of the condition.
        outcome: "pass", "stop", or "not measured", which counts as a stop.
        measured: the figure that was compared; None if there is none.
        threshold: what it was compared with.
        bound: "max": at most the threshold; "min": at least.
        lowest, highest: of figures measured process by process, the extremes; None for others.
        reason: in words, with figures.
    """

    name: str
    outcome: Literal["pass", "stop", "not measured"]
    measured: float | None
    threshold: float
    bound: Literal["max", "min"]
    lowest: float | None
    highest: float | None
    reason: str


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A decision and what it rests on; no reasons for a pass."""

    outcome: Literal["pass", "stop"]
    reasons: list[str]


class Quality(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model's answers on a restored cache beside those on the cache that was evaluated.

    Attributes:
        n_forced, n_first: teacher-forced tokens of the text, and the first of them.
        agreement, agreement_first: share of these positions with the same most likely token.
        first_mismatch: the first such position with another one; None if there is none.
        kl_mean_nats, kl_p99_nats, kl_max_nats: KL(evaluated || restored).
        perplexity_evaluated, perplexity_restored: of the text's own tokens.
        n_free, free_agreement, free_first_difference: the same of greedy tokens, each fed back.
        free_text_sha256: of the greedy tokens as int32, little-endian.
        is_same_again: of an exact archive: what it restored, saved again, has the same bytes; None for others.
    """

    n_forced: int
    n_first: int
    agreement: float
    agreement_first: float
    first_mismatch: int | None
    kl_mean_nats: float
    kl_p99_nats: float
    kl_max_nats: float
    perplexity_evaluated: float
    perplexity_restored: float
    n_free: int
    free_agreement: float
    free_first_difference: int | None
    free_text_sha256: str
    is_same_again: bool | None


class Retrieval(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Tasks whose answer stands in the prompt.

    Attributes:
        kind: "needle" or "key-value".
        n_tasks: asked.
        n_solved_evaluated: with the cache that was evaluated.
        n_lost: of these, not solved after the restore.
    """

    kind: str
    n_tasks: int
    n_solved_evaluated: int
    n_lost: int


class LayerBits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bits a value of a layer's K, V and other state; None where there is none."""

    layer: int
    k: float | None
    v: float | None
    aux: float | None


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One way to come to the first token, in one row.

    Attributes:
        name: "recompute", "llama-state", "native", or a profile.
        refusal: why it cannot be done in this row; "" if it can.
        is_exact: every bit comes back.
        file_bytes: of the file; 0 for recompute.
        bits_per_value: bits of the file by number of K and V values.
        layer_bits: of an archive, layer by layer.
        samples: phase -> one list of samples for each process.
        summaries: the same in few numbers.
        restore_peak_bytes, save_peak_bytes: what a process grew by at most; None if that could not be measured.
        restore_transient_bytes, save_transient_bytes: what the library counted that it held at most besides cache and
            archive, in host and device memory together; None where it does not count.
        quality, retrieval: see there.
        gates: of an archive.
        decision: of an archive; None for what archives are compared with.
    """

    name: str
    refusal: str
    is_exact: bool
    file_bytes: int
    bits_per_value: float | None
    layer_bits: list[LayerBits]
    samples: dict[str, list[list[float]]]
    summaries: dict[str, Summary]
    restore_peak_bytes: int | None
    save_peak_bytes: int | None
    restore_transient_bytes: int | None = None
    save_transient_bytes: int | None = None
    quality: Quality | None
    retrieval: list[Retrieval]
    gates: list[Gate]
    decision: Decision | None


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What another codec makes of the same bytes.

    Attributes:
        name: of the codec.
        source: what it was given.
        is_exact: every bit comes back.
        source_bytes, encoded_bytes: sizes.
        encode_ms, decode_ms: samples; empty if it was not timed.
        note: what must be known beside the figures; why there are none, if there are none.
    """

    name: str
    source: str
    is_exact: bool
    source_bytes: int
    encoded_bytes: int | None
    encode_ms: list[float]
    decode_ms: list[float]
    note: str


class RowEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A typed row.

    Attributes:
        type_k, type_v: asked for.
        component_types: as allocated, read from the context.
        component_backends: where the components lie.
        memory: class of the context's memory.
        status: "measured" or "unsupported".
        reason: of an unsupported row.
        n_values: K and V values of the page; 0 where the control is llama.cpp's state file.
        native_bytes: of the page or of the native archive's rows; else, of llama.cpp's state file.
        control: the case archives are compared with: "native"; where native pages are refused "native-archive", and
            where the memory has no archives either "llama-state".
        others_cores: cores that other processes used on average while this row was timed; None if not known.
        cold_resident_percent: most that stayed in the page cache after a file was dropped; None: it was not dropped.
        cases, peers: see there.
        decision: of the row.
    """

    type_k: str
    type_v: str
    component_types: dict[str, str]
    component_backends: list[str]
    memory: str
    status: Literal["measured", "unsupported"]
    reason: str
    n_values: int
    native_bytes: int
    control: str
    others_cores: float | None
    cold_resident_percent: float | None
    cases: list[Case]
    peers: list[Peer]
    decision: Decision

    @property
    def name(self) -> str:
        """For example "q8_0/f16"."""
        return f"{self.type_k}/{self.type_v}"

    def case(self, name: str) -> Case:
        """A case of the row.

        Raises:
            KeyError: there is none.
        """
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(name)


class ModelFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model's file."""

    name: str
    sha256: str
    n_bytes: int
    is_synthetic: bool


class TextFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The text, and the tokens of it that were used.

    Attributes:
        names: of its parts.
        description: where they come from.
        sha256: of the joined text in UTF-8; of a shape "".
        prompt_sha256, forced_sha256: of the tokens as int32, little-endian.
    """

    names: list[str]
    description: str
    sha256: str
    prompt_sha256: str
    forced_sha256: str


class Conditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What bore on the run.

    Attributes:
        started_utc, ended_utc: ISO 8601.
        duration_s: of all steps.
        load_start, load_end: load averages over 1, 5 and 15 minutes.
        n_resumes: how often the run was taken up again.
        is_niced: the run had a lower priority than others.
    """

    started_utc: str
    ended_utc: str
    duration_s: float
    load_start: list[float]
    load_end: list[float]
    n_resumes: int
    is_niced: bool


class HarnessCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What timing a phase costs, measured on a phase that does nothing.

    Attributes:
        empty_ms: samples.
        smallest_phase_ms: the smallest median of any timed restore, save or first token.
        share: of the empty phase in that.
        gate: whether it is little enough.
    """

    empty_ms: list[float]
    smallest_phase_ms: float
    share: float
    gate: Gate


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Another certificate."""

    id: str
    digest: str


class Certificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """See the module."""

    schema_version: int
    id: str
    is_quick: bool
    software: Software
    hardware: Hardware
    model: ModelFacts
    text: TextFacts
    workload: Workload
    conditions: Conditions
    harness: HarnessCost
    rows: list[RowEvidence]
    decision: Decision
    supersedes: Link | None
    superseded_by: str | None
    digest: str

    @property
    def subject(self) -> tuple[str, str, bool]:
        """What is qualified where: only one standing certificate can be about it."""
        return self.workload.name, self.hardware.key, self.is_quick

    @property
    def evidence(self) -> str:
        """How much the figures are worth: of which weights, on what but a CPU, of a quick run, on a noisy machine."""
        if self.is_quick:
            return "quick run"
        weights = "synthetic weights" if self.model.is_synthetic else "real weights"
        if self.hardware.is_accelerated:
            weights += f", {self.hardware.backend}"
        return f"{weights}, noisy machine" if self._is_noisy else weights

    @property
    def _is_noisy(self) -> bool:
        """Times spread too much, or others used the machine: its times are no good for comparison."""
        gates = (gate for row in self.rows for case in row.cases for gate in case.gates)
        return any(
            gate.outcome != "pass" and (gate.name == "others" or gate.name.startswith("spread")) for gate in gates
        )

    def row(self, name: str) -> RowEvidence:
        """A typed row.

        Raises:
            KeyError: there is none.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)


def certificate_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of the file."""
    schema = msgspec.json.schema(Certificate)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "llama-cachegen certificate", **schema}


def plain_certificate(certificate: Certificate) -> dict[str, Any]:
    """As JSON has it. What came to the schema later is left out at its default, so that older digests hold."""
    plain: dict[str, Any] = msgspec.to_builtins(certificate)
    for name, default in _LATER_IN_WORKLOAD.items():
        if plain["workload"][name] == default:
            del plain["workload"][name]
    return plain


def digest_of(plain: dict[str, Any]) -> str:
    """SHA-256 over the canonical form of what is sealed, of the file's JSON as it stands."""
    sealed = {name: value for name, value in plain.items() if name not in _UNSEALED}
    return hashlib.sha256(rfc8785.dumps(sealed)).hexdigest()


def seal(certificate: Certificate) -> Certificate:
    """The certificate with its digest. It is decoded from its own bytes first, so that numbers have one form."""
    plain = msgspec.json.decode(msgspec.json.encode(certificate), type=Certificate)
    return msgspec.structs.replace(plain, digest=digest_of(plain_certificate(plain)))


_NUMBERS = re.compile(r"\[\s+((?:-?[0-9][0-9.eE+-]*,\s+)*-?[0-9][0-9.eE+-]*)\s+\]")


def encode_certificate(certificate: Certificate) -> bytes:
    """The file: indented JSON, a list of numbers on one line."""
    text = json.dumps(plain_certificate(certificate), indent=1, ensure_ascii=False)
    text = _NUMBERS.sub(lambda match: "[" + re.sub(r",\s+", ", ", match[1]) + "]", text)
    return text.encode("utf-8") + b"\n"


def read_certificate(path: Path) -> Certificate:
    """A certificate whose digest holds. What it says is not judged here: see `verify.verify_certificate`.

    Raises:
        CertificateError: no certificate of this version, or one that was edited.
        OSError: the file cannot be read.
    """
    try:
        plain = json.loads(path.read_bytes())
        certificate = msgspec.convert(plain, Certificate)
        actual = digest_of(plain)
    except (ValueError, RecursionError) as error:  # of JSON, msgspec, UTF-8 and numbers that no canonical form has
        raise CertificateError(f"{path} is no certificate of version {SCHEMA_VERSION}: {error}") from None
    if certificate.schema_version != SCHEMA_VERSION:
        raise CertificateError(
            f"{path}: schema version {certificate.schema_version}, this version reads {SCHEMA_VERSION}"
        )
    if certificate.id != path.name.removesuffix(".json"):
        raise CertificateError(f"{path}: the certificate's id is {certificate.id}; its file must have that name")
    if actual != certificate.digest:
        raise CertificateError(
            f"{path} was edited: its digest is {certificate.digest[:16]}…, its content's {actual[:16]}…; certificates"
            " are written by `llama-cachegen qualify` only, run it again"
        )
    return certificate


def write_certificate(certificate: Certificate, folder: Path) -> Path:
    """Put a sealed certificate into a folder, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / f"{certificate.id}.json"
    data = encode_certificate(certificate)
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda fd: os.write(fd, data))
    path.chmod(0o644)
    return path
