"""What the steps measured, put together into rows and a certificate."""

from __future__ import annotations

from typing import Any

import msgspec

from .cases import LLAMA, NATIVE, NATIVE_ARCHIVE, RECOMPUTE
from .certificate import (
    SCHEMA_VERSION,
    Case,
    Certificate,
    Conditions,
    Decision,
    LayerBits,
    ModelFacts,
    Peer,
    Quality,
    Retrieval,
    RowEvidence,
    TextFacts,
)
from .gates import decide_overall, judge_harness, judge_row, peers_in_order
from .hardware import Hardware
from .provenance import Software
from .workload import Row, Workload

__all__ = ["assemble_certificate", "assemble_row"]

_UNDECIDED = Decision(outcome="stop", reasons=["not decided"])


def assemble_row(row: Row, steps: dict[str, dict[str, Any]], workload: Workload) -> RowEvidence:
    """A row from the results of its steps, by name: "prepare", "timing 0", ..., "quality", ... ."""
    prepared = steps["prepare"]
    base = RowEvidence(
        type_k=row.type_k,
        type_v=row.type_v,
        component_types=prepared.get("component_types", {}),
        component_backends=prepared.get("component_backends", []),
        memory=prepared.get("memory", ""),
        status=prepared["status"],
        reason=prepared["reason"],
        n_values=prepared.get("n_values", 0),
        native_bytes=prepared.get("native_bytes", 0),
        control=prepared.get("control", ""),
        others_cores=None,
        cold_resident_percent=None,
        cases=[],
        peers=[],
        decision=_UNDECIDED,
    )
    if base.status == "unsupported":
        return judge_row(base, workload)
    timings = [steps[f"timing {i}"] for i in range(workload.repeats.processes)]
    others = [timing["others_cores"] for timing in timings]
    resident = [timing["cold_resident_percent"] for timing in timings]
    own = [NATIVE_ARCHIVE] if NATIVE_ARCHIVE in prepared["files"] else []
    names = (RECOMPUTE, LLAMA, NATIVE, *own, *workload.profiles)
    measured = msgspec.structs.replace(
        base,
        others_cores=None if None in others else round(max(others), 4),
        cold_resident_percent=None if None in resident else round(max(resident), 4),
        cases=[_case(name, prepared, timings, steps) for name in names],
        peers=peers_in_order(msgspec.convert(steps["peers"]["peers"], list[Peer])),
    )
    return judge_row(measured, workload)


def _case(name: str, prepared: dict[str, Any], timings: list[dict[str, Any]], steps: dict[str, dict[str, Any]]) -> Case:
    facts = prepared["files"].get(name, {"refusal": "", "file_bytes": 0, "is_exact": True, "layers": []})
    refusal = facts["refusal"]
    phases = dict.fromkeys(phase for timing in timings for phase in timing["samples"].get(name, {}))
    samples = {phase: [timing["samples"][name][phase] for timing in timings] for phase in phases}
    file_bytes = facts.get("file_bytes", 0)

    def memory(action: str, what: str = "peak_bytes") -> int | None:
        value = steps.get(f"memory {action}", {}).get(what, {}).get(name)
        return None if value is None else int(value)

    quality = steps["quality"].get(name)
    return Case(
        name=name,
        refusal=refusal,
        is_exact=facts.get("is_exact", True),
        file_bytes=file_bytes,
        bits_per_value=round(8 * file_bytes / prepared["n_values"], 6) if file_bytes and prepared["n_values"] else None,
        layer_bits=msgspec.convert(facts.get("layers", []), list[LayerBits]),
        samples=samples,
        summaries={},
        restore_peak_bytes=memory("restore"),
        save_peak_bytes=memory("save"),
        restore_transient_bytes=memory("restore", "transient_bytes"),
        save_transient_bytes=memory("save", "transient_bytes"),
        quality=None if quality is None else msgspec.convert(quality, Quality),
        retrieval=msgspec.convert(steps["retrieval"].get(name, []), list[Retrieval]),
        gates=[],
        decision=None,
    )


def assemble_certificate(
    *,
    is_quick: bool,
    software: Software,
    hardware: Hardware,
    model: ModelFacts,
    text: TextFacts,
    workload: Workload,
    conditions: Conditions,
    empty_ms: list[float],
    rows: list[RowEvidence],
) -> Certificate:
    """Not sealed yet: `publish` finds what it supersedes, and seals it."""
    harness = judge_harness(empty_ms, rows, workload)
    day = conditions.ended_utc[:10]
    code = (software.commit or software.package_sha256)[:8]
    return Certificate(
        schema_version=SCHEMA_VERSION,
        id=f"{workload.name}{'-quick' if is_quick else ''}--{hardware.key}--{day}-{code}",
        is_quick=is_quick,
        software=software,
        hardware=hardware,
        model=model,
        text=text,
        workload=workload,
        conditions=conditions,
        harness=harness,
        rows=rows,
        decision=decide_overall(rows, harness),
        supersedes=None,
        superseded_by=None,
        digest="",
    )
