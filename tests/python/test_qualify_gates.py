"""Decisions as functions of samples: every condition stops by name, with its threshold, its figure and a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from llama_cachegen.qualify.certificate import Case, Decision, Gate, Quality, Retrieval, RowEvidence
from llama_cachegen.qualify.gates import decide_overall, judge_harness, judge_row
from llama_cachegen.qualify.spread import Summary, paired_ratios, relative_spread
from llama_cachegen.qualify.workload import Workload, load_workload

N_PROCESSES = 7
MIB = 1 << 20


@pytest.fixture(scope="module")
def workload() -> Workload:
    return load_workload("smollm2-7k")


def samples(value: float, n: int = 15) -> list[list[float]]:
    """The same value with a little more in every process and sample."""
    return [[value * (1 + 0.001 * i + 0.0001 * j) for j in range(n)] for i in range(N_PROCESSES)]


def quality(**changes: Any) -> Quality:
    plain: dict[str, Any] = {
        "n_forced": 512,
        "n_first": 64,
        "agreement": 0.98,
        "agreement_first": 1.0,
        "first_mismatch": 100,
        "kl_mean_nats": 0.01,
        "kl_p99_nats": 0.1,
        "kl_max_nats": 0.5,
        "perplexity_evaluated": 10.0,
        "perplexity_restored": 10.01,
        "n_free": 256,
        "free_agreement": 0.5,
        "free_first_difference": 60,
        "free_text_sha256": "00" * 32,
        "is_same_again": None,
        **changes,
    }
    return Quality(**plain)


def case(name: str, ttft_ms: float, **changes: Any) -> Case:
    plain: dict[str, Any] = {
        "name": name,
        "refusal": "",
        "is_exact": name != "balanced",
        "file_bytes": 20 * MIB,
        "bits_per_value": 2.6,
        "layer_bits": [],
        "samples": {
            "warm.ttft_ms": samples(ttft_ms),
            "cold.ttft_ms": samples(2 * ttft_ms, 2),
            "decode.step_ms": samples(10, 60),
            "save.total_ms": samples(100, 2),
            "save.export_ms": samples(9, 2),
        },
        "summaries": {},
        "restore_peak_bytes": 21 * MIB,
        "save_peak_bytes": 8 * MIB,
        "quality": quality(),
        "retrieval": [Retrieval(kind="needle", n_tasks=4, n_solved_evaluated=3, n_lost=0)],
        "gates": [],
        "decision": None,
    }
    return Case(**{**plain, **changes})


def row(**changes: Any) -> RowEvidence:
    """A row in which `balanced` passes everything and `exact` too."""
    exact = quality(agreement=1.0, kl_mean_nats=0.0, perplexity_restored=10.0, free_agreement=1.0, is_same_again=True)
    native = quality(agreement=1.0, kl_mean_nats=0.0, perplexity_restored=10.0, free_agreement=1.0)
    plain: dict[str, Any] = {
        "type_k": "f16",
        "type_v": "f16",
        "component_types": {"K": "f16", "V": "f16"},
        "component_backends": ["CPU"],
        "memory": "dense",
        "status": "measured",
        "reason": "",
        "n_values": 80 * MIB,
        "native_bytes": 160 * MIB,
        "control": "native",
        "others_cores": 0.01,
        "cold_resident_percent": 0.0,
        "cases": [
            case("recompute", 30_000, quality=None, retrieval=[], file_bytes=0),
            case("llama-state", 70),
            case("native", 60, quality=native),
            case("balanced", 50, samples={**case("", 50).samples, "save.total_ms": samples(80, 2)}),
            case("fine", 50),
            case("lmcache", 50),
            case("exact", 55, quality=exact),
        ],
        "peers": [],
        "decision": Decision(outcome="stop", reasons=[]),
    }
    return RowEvidence(**{**plain, **changes})


def changed(name: str, **changes: Any) -> RowEvidence:
    one = row()
    cases = [msgspec.structs.replace(case, **changes) if case.name == name else case for case in one.cases]
    return msgspec.structs.replace(one, cases=cases)


def with_samples(name: str, **phases: list[list[float]]) -> RowEvidence:
    named = {phase.replace("__", "."): values for phase, values in phases.items()}
    return changed(name, samples={**row().case(name).samples, **named})


def stops(judged: RowEvidence, name: str) -> dict[str, Gate]:
    return {gate.name: gate for gate in judged.case(name).gates if gate.outcome != "pass"}


def test_pass(workload: Workload) -> None:
    judged = judge_row(row(), workload)
    assert judged.decision == Decision(outcome="pass", reasons=[])
    assert stops(judged, "balanced") == {} == stops(judged, "exact")
    assert judged.case("native").decision is None and judged.case("recompute").gates == []
    (gate,) = (gate for gate in judged.case("balanced").gates if gate.name == "warm first token of control")
    assert gate.measured == pytest.approx(50 / 60, abs=1e-5) and gate.threshold == 1.0 and gate.bound == "max"
    assert gate.lowest is not None and gate.highest is not None and gate.lowest <= gate.measured <= gate.highest


SLOW = {"warm__ttft_ms": samples(61)}
CASES: dict[str, tuple[str, Callable[[], RowEvidence]]] = {
    "size": ("0.25", lambda: changed("balanced", file_bytes=161 * MIB)),
    "warm first token of control": ("1.017", lambda: with_samples("balanced", **SLOW)),
    "cold first token of control": ("1.033", lambda: with_samples("balanced", cold__ttft_ms=samples(124, 2))),
    "first token of recompute": ("0.1", lambda: with_samples("recompute", warm__ttft_ms=samples(400))),
    "decode p99 of control": ("1.25", lambda: with_samples("balanced", decode__step_ms=samples(13, 60))),
    "save of llama.cpp's": ("1.2", lambda: with_samples("balanced", save__total_ms=samples(120, 2))),
    "encode of recompute": ("0.1", lambda: with_samples("balanced", save__export_ms=samples(3100, 2))),
    "memory of a restore": ("bytes at the peak", lambda: changed("balanced", restore_peak_bytes=85 * MIB)),
    "memory of a save": ("bytes at the peak", lambda: changed("balanced", save_peak_bytes=65 * MIB)),
    "agreement of 64": ("0.9375", lambda: changed("balanced", quality=quality(agreement_first=60 / 64))),
    "agreement of 512": ("0.94", lambda: changed("balanced", quality=quality(agreement=0.94))),
    "KL": ("0.021", lambda: changed("balanced", quality=quality(kl_mean_nats=0.021))),
    "perplexity": ("0.02", lambda: changed("balanced", quality=quality(perplexity_restored=9.8))),
    "retrieval, needle": (
        "of 3 tasks of 4 solved",
        lambda: changed("balanced", retrieval=[Retrieval(kind="needle", n_tasks=4, n_solved_evaluated=3, n_lost=1)]),
    ),
    "spread of balanced warm.ttft_ms": (
        "between processes",
        lambda: with_samples("balanced", warm__ttft_ms=[[10.0 + 10 * i] * 15 for i in range(N_PROCESSES)]),
    ),
    "spread of native cold.ttft_ms": (
        "between processes",
        lambda: with_samples("native", cold__ttft_ms=[[200.0 + 90 * i] * 2 for i in range(N_PROCESSES)]),
    ),
    "others": ("cores that others used", lambda: row(others_cores=1.2)),
}


@pytest.mark.parametrize("name", CASES)
def test_stop(name: str, workload: Workload) -> None:
    words, make = CASES[name]
    judged = judge_row(make(), workload)
    found = stops(judged, "balanced")
    assert list(found) == [name]
    gate = found[name]
    assert gate.outcome == "stop" and gate.measured is not None and f"{gate.threshold:g}" != ""
    assert words in gate.reason or words == "0.25"
    assert ("at most" in gate.reason) == (gate.bound == "max")
    assert judged.decision.outcome == "stop" and judged.decision.reasons == [f"balanced: {name}: {gate.reason}"]


def test_exact_is_held_to_its_bits(workload: Workload) -> None:
    exact = row().case("exact").quality
    assert exact is not None
    other_bytes = judge_row(changed("exact", quality=msgspec.structs.replace(exact, is_same_again=False)), workload)
    assert list(stops(other_bytes, "exact")) == ["same bytes"]
    other_text = judge_row(changed("exact", quality=msgspec.structs.replace(exact, free_agreement=0.99)), workload)
    assert list(stops(other_text, "exact")) == ["free running"]
    assert other_text.decision.outcome == "pass"  # it is not among the required ones


def test_what_was_not_measured_stops(workload: Workload) -> None:
    few = judge_row(with_samples("balanced", decode__step_ms=samples(10, 14)), workload)
    assert stops(few, "balanced")["decode p99 of control"].outcome == "not measured"
    assert "no 99th percentile" in stops(few, "balanced")["decode p99 of control"].reason
    assert few.decision.outcome == "stop" and "no 99th percentile" in few.decision.reasons[0]
    not_dropped = judge_row(row(cold_resident_percent=40.0), workload)
    assert "not dropped from the page cache" in stops(not_dropped, "balanced")["cold first token of control"].reason
    unknown = judge_row(row(cold_resident_percent=None, others_cores=None), workload)
    assert set(stops(unknown, "balanced")) == {"cold first token of control", "others"}
    no_memory = judge_row(changed("balanced", save_peak_bytes=None), workload)
    assert list(stops(no_memory, "balanced")) == ["memory of a save"]
    two = {phase: values[:2] for phase, values in row().case("balanced").samples.items()}
    short = changed("balanced", samples={**row().case("balanced").samples, "cold.ttft_ms": two["cold.ttft_ms"]})
    with pytest.raises(ValueError, match=r"longer|shorter"):  # processes that measured one side only are no pairs
        judge_row(short, workload)


def test_refused_and_unsupported(workload: Workload) -> None:
    refused = judge_row(changed("balanced", refusal="REFUSED_SOMETHING", samples={}), workload)
    assert refused.decision.reasons == ["balanced: refused: REFUSED_SOMETHING"]
    unsupported = judge_row(row(status="unsupported", reason="no context with K f32"), workload)
    assert unsupported.cases == [] and unsupported.decision.reasons == ["unsupported: no context with K f32"]


def test_overall(workload: Workload) -> None:
    good = judge_row(row(), workload)
    bad = judge_row(row(type_k="f32", others_cores=2.0), workload)
    cheap = judge_harness([0.001] * 9, [good], workload)
    assert cheap.gate.outcome == "pass" and cheap.smallest_phase_ms == good.case("fine").summaries["decode.step_ms"].p50
    assert decide_overall([good], cheap) == Decision(outcome="pass", reasons=[])
    assert decide_overall([good, bad], cheap).reasons == ["f32/f16: stop"]
    dear = judge_harness([1.0] * 9, [good], workload)
    assert dear.gate.outcome == "stop" and decide_overall([good], dear).reasons[0].startswith("harness: an empty phase")


def test_summaries() -> None:
    few, many = Summary.of([[1.0, 2.0, 3.0]] * 3), Summary.of([[float(i) for i in range(50)]] * 2)
    assert (few.n, few.n_processes, few.p50, few.min, few.max, few.p99) == (9, 3, 2.0, 1.0, 3.0, None)
    assert many.n == 100 and many.p99 == pytest.approx(49.0) and many.p90 == pytest.approx(44.1, abs=0.2)
    assert many.spread is None  # of two processes none is known
    assert relative_spread([[10.0], [10.0], [10.0]]) == 0.0
    assert relative_spread([[8.0], [10.0], [12.0]]) == pytest.approx(0.2)
    # each process's own medians are compared: a machine that slows down for both sides changes nothing
    assert paired_ratios([[1.0], [2.0], [40.0]], [[2.0], [4.0], [80.0]]) == [0.5, 0.5, 0.5]
