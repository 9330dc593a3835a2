"""The decisions: conditions with thresholds, as pure functions of samples, so that a reader can decide again.

Times are compared within processes: each process measured both sides in turns, its two medians make one ratio, and the
median of these ratios is held against the threshold.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

from .certificate import Case, Decision, Gate, HarnessCost, Peer, RowEvidence
from .spread import N_FOR_P99, Summary, paired_ratios, relative_spread
from .workload import Thresholds, Workload

__all__ = ["decide_overall", "judge_harness", "judge_row", "summaries_of"]

_LLAMA = "llama-state"
RECOMPUTE = "recompute"
_COMPARED_WITH = (RECOMPUTE, _LLAMA, "native", "native-archive")


def summaries_of(samples: dict[str, list[list[float]]]) -> dict[str, Summary]:
    """Of every phase that has samples."""
    return {phase: Summary.of(processes) for phase, processes in samples.items() if any(processes)}


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _gate(
    name: str,
    measured: float | None,
    threshold: float,
    words: str,
    *,
    bound: str = "max",
    range_: Sequence[float] = (),
) -> Gate:
    """words say what was measured, or why it was not."""
    if measured is None:
        outcome, reason = "not measured", words
    else:
        is_reached = measured <= threshold if bound == "max" else measured >= threshold
        outcome = "pass" if is_reached else "stop"
        limit = "at most" if bound == "max" else "at least"
        reason = f"{words} {_figure(measured)}, {limit} {_figure(threshold)}"
    return msgspec.convert(
        {
            "name": name,
            "outcome": outcome,
            "measured": measured,
            "threshold": float(threshold),
            "bound": bound,
            "lowest": min(range_) if range_ else None,
            "highest": max(range_) if range_ else None,
            "reason": reason,
        },
        Gate,
    )


def _ratio_gate(name: str, case: Case, other: Case, phase: str, threshold: float, words: str) -> Gate:
    ours, theirs = case.samples.get(phase), other.samples.get(phase)
    if not ours or not theirs:
        return _gate(name, None, threshold, f"{phase} was not measured of both {case.name} and {other.name}")
    ratios = paired_ratios(ours, theirs)
    return _gate(name, statistics.median(ratios), threshold, words, range_=ratios)


def _p99_gate(case: Case, other: Case, threshold: float) -> Gate:
    name, phase = "decode p99 of control", "decode.step_ms"
    both = [[value for process in one.samples.get(phase, []) for value in process] for one in (case, other)]
    if min(len(values) for values in both) < N_FOR_P99:
        return _gate(name, None, threshold, f"fewer than {N_FOR_P99} decode steps were timed: no 99th percentile")
    ours, theirs = (float(np.percentile(values, 99)) for values in both)
    return _gate(name, round(ours / theirs, 6), threshold, f"p99 of a decode step over that of {other.name}:")


def _spread_gate(case: Case, phase: str, threshold: float) -> Gate:
    name = f"spread of {case.name} {phase}"
    processes = case.samples.get(phase)
    spread = relative_spread(processes) if processes else None
    if spread is None:
        return _gate(name, None, threshold, f"{case.name} has no three processes with {phase}: its spread is not known")
    return _gate(name, spread, threshold, f"spread of {case.name}'s {phase} between processes:")


def _quality_gates(case: Case, control: Case, limits: Thresholds) -> list[Gate]:
    quality = case.quality
    if quality is None:
        return [_gate("quality", None, limits.agreement_min, "the model's answers were not compared")]
    change = abs(quality.perplexity_restored / quality.perplexity_evaluated - 1)
    first, n = quality.n_first, quality.n_forced
    gates = [
        _gate(
            f"agreement of {first}",
            quality.agreement_first,
            limits.agreement_first_min,
            f"share of {first} teacher-forced tokens with the same most likely one:",
            bound="min",
        ),
        _gate(
            f"agreement of {n}",
            quality.agreement,
            limits.agreement_min,
            f"share of {n} teacher-forced tokens with the same most likely one:",
            bound="min",
        ),
        _gate("KL", quality.kl_mean_nats, limits.kl_mean_nats_max, f"mean KL over {n} tokens, nats:"),
        _gate("perplexity", round(change, 6), limits.perplexity_change_max, "relative change of the perplexity:"),
    ]
    if case.is_exact:
        same = None if quality.is_same_again is None else float(quality.is_same_again)
        gates.append(_gate("same bytes", same, 1.0, "what was restored, saved again, has the same bytes:", bound="min"))
        if control.quality is not None:
            words = f"share of {quality.n_free} greedy tokens that are the same (after {control.name}:"
            words += f" {_figure(control.quality.free_agreement)}):"
            least = control.quality.free_agreement
            gates.append(_gate("free running", quality.free_agreement, least, words, bound="min"))
    for one in case.retrieval:
        words = f"{one.kind}: of {one.n_solved_evaluated} tasks of {one.n_tasks} solved without a restore, lost:"
        gates.append(_gate(f"retrieval, {one.kind}", float(one.n_lost), limits.retrieval_lost_max, words))
    return gates


def _memory_gate(name: str, peak: int | None, threshold: int, words: str) -> Gate:
    if peak is None:
        return _gate(name, None, threshold, "this system does not tell the peak of a process's memory")
    return _gate(name, float(peak), threshold, words)


def _gates(case: Case, row: RowEvidence, limits: Thresholds) -> list[Gate]:
    control, recompute, llama = row.case(row.control), row.case(RECOMPUTE), row.case(_LLAMA)
    over_control = f"restore and first token over that of {control.name},"
    gates = [
        _gate("size", case.file_bytes / row.native_bytes, limits.size_of_native_max, "file over native bytes:"),
        _ratio_gate(
            "warm first token of control",
            case,
            control,
            "warm.ttft_ms",
            limits.warm_ttft_of_control_max,
            f"{over_control} warm:",
        ),
    ]
    if row.cold_resident_percent is None or row.cold_resident_percent > limits.cold_resident_percent_max:
        left = "is not known" if row.cold_resident_percent is None else f"was {row.cold_resident_percent:.1f} %"
        words = f"files were not dropped from the page cache: what stayed of one {left}"
        gates.append(_gate("cold first token of control", None, limits.cold_ttft_of_control_max, words))
    else:
        gates.append(
            _ratio_gate(
                "cold first token of control",
                case,
                control,
                "cold.ttft_ms",
                limits.cold_ttft_of_control_max,
                f"{over_control} cold:",
            )
        )
    gates += [
        _ratio_gate(
            "first token of recompute",
            case,
            recompute,
            "warm.ttft_ms",
            limits.ttft_of_recompute_max,
            "restore and first token over evaluating the prompt:",
        ),
        _p99_gate(case, control, limits.decode_p99_of_control_max),
        _ratio_gate(
            "save of llama.cpp's",
            case,
            llama,
            "save.total_ms",
            limits.save_of_llama_state_max,
            "encode, write and fsync over llama.cpp's save and fsync:",
        ),
    ]
    encode, evaluate = case.samples.get("save.export_ms"), recompute.samples.get("warm.ttft_ms")
    if encode and evaluate:
        ratios = paired_ratios(encode, evaluate)
        words = "encoding over evaluating the prompt:"
        limit = limits.encode_of_recompute_max
        gates.append(_gate("encode of recompute", statistics.median(ratios), limit, words, range_=ratios))
    else:
        gates.append(_gate("encode of recompute", None, limits.encode_of_recompute_max, "no save was measured"))
    gates += [
        _memory_gate(
            "memory of a restore",
            case.restore_peak_bytes,
            limits.restore_memory_over_file_bytes_max + case.file_bytes,
            "bytes at the peak, mapped file included:",
        ),
        _memory_gate("memory of a save", case.save_peak_bytes, limits.save_memory_bytes_max, "bytes at the peak:"),
        *_quality_gates(case, control, limits),
    ]
    for one, phase in (
        (case, "warm.ttft_ms"),
        (control, "warm.ttft_ms"),
        (recompute, "warm.ttft_ms"),
        (case, "cold.ttft_ms"),
        (control, "cold.ttft_ms"),
    ):
        gates.append(_spread_gate(one, phase, limits.spread_max))
    words = "cores that others used while the row was timed:"
    if row.others_cores is None:
        words = "how much of the processor others used is not known"
    gates.append(_gate("others", row.others_cores, limits.others_cores_max, words))
    return gates


def _decision(reasons: list[str]) -> Decision:
    return Decision(outcome="stop" if reasons else "pass", reasons=reasons)


def _judge_case(case: Case, row: RowEvidence, limits: Thresholds) -> Case:
    if case.name in _COMPARED_WITH:
        return msgspec.structs.replace(case, gates=[], decision=None)
    if case.refusal:
        return msgspec.structs.replace(case, gates=[], decision=_decision([f"refused: {case.refusal}"]))
    gates = _gates(case, row, limits)
    reasons = [f"{gate.name}: {gate.reason}" for gate in gates if gate.outcome != "pass"]
    return msgspec.structs.replace(case, gates=gates, decision=_decision(reasons))


def judge_row(row: RowEvidence, workload: Workload) -> RowEvidence:
    """The row with summaries, gates and decisions made from its samples, whatever it had of these before."""
    if row.status == "unsupported":
        return msgspec.structs.replace(row, cases=[], decision=_decision([f"unsupported: {row.reason}"]))
    cases = [msgspec.structs.replace(case, summaries=summaries_of(case.samples)) for case in row.cases]
    row = msgspec.structs.replace(row, cases=cases)
    cases = [_judge_case(case, row, workload.thresholds) for case in cases]
    row = msgspec.structs.replace(row, cases=cases)
    reasons = []
    for name in workload.required_profiles:
        decision = row.case(name).decision
        if decision is not None:
            reasons += [f"{name}: {reason}" for reason in decision.reasons]
    return msgspec.structs.replace(row, decision=_decision(reasons))


def judge_harness(empty_ms: list[float], rows: Sequence[RowEvidence], workload: Workload) -> HarnessCost:
    """What an empty phase costs, of the smallest thing that was timed."""
    phases = ("warm.restore_ms", "warm.first_token_ms", "decode.step_ms", "save.total_ms", "cold.restore_ms")
    smallest = min(
        (
            case.summaries[phase].p50
            for row in rows
            for case in row.cases
            for phase in phases
            if phase in case.summaries
        ),
        default=0.0,
    )
    limit = workload.thresholds.harness_cost_max
    if not empty_ms or smallest <= 0:
        gate = _gate("harness", None, limit, "nothing was timed")
        return HarnessCost(empty_ms=empty_ms, smallest_phase_ms=smallest, share=0.0, gate=gate)
    share = round(statistics.median(empty_ms) / smallest, 8)
    gate = _gate("harness", share, limit, "an empty phase over the smallest phase timed:")
    return HarnessCost(empty_ms=empty_ms, smallest_phase_ms=smallest, share=share, gate=gate)


def decide_overall(rows: Sequence[RowEvidence], harness: HarnessCost) -> Decision:
    """A pass if every row passes, and the harness costs little enough."""
    reasons = [f"{row.name}: {row.decision.outcome}" for row in rows if row.decision.outcome != "pass"]
    if harness.gate.outcome != "pass":
        reasons.append(f"{harness.gate.name}: {harness.gate.reason}")
    return _decision(reasons)


def peers_in_order(peers: Sequence[Peer]) -> list[Peer]:
    """By size."""
    return sorted(peers, key=lambda peer: (peer.encoded_bytes is None, peer.encoded_bytes or 0, peer.name))
