"""Tables that documents get out of certificates."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from ..backends import BACKENDS
from ..evaluate.report import markdown_table
from .cases import RECOMPUTE
from .certificate import Case, Certificate, RowEvidence
from .published import published_lines
from .verify import standing

__all__ = ["TABLES"]

_WARM, _COLD = "warm.ttft_ms", "cold.ttft_ms"


def _link(certificate: Certificate, folder: Path, document: Path) -> str:
    path = os.path.relpath(folder / f"{certificate.id}.json", document.parent)
    return f"[{certificate.id.rpartition('--')[2]}]({Path(path).as_posix()})"


def _p50(case: Case, phase: str) -> str:
    summary = case.summaries.get(phase)
    if summary is None:
        return ""
    return f"{summary.p50:,.1f}" if summary.p50 < 1000 else f"{summary.p50:,.0f}"


def _outcome(decision: str) -> str:
    return "pass" if decision == "pass" else "**stop**"


def _in_order(certificates: Sequence[Certificate]) -> list[Certificate]:
    return sorted(certificates, key=lambda one: (one.workload.name, one.hardware.key, one.conditions.ended_utc, one.id))


def _measured(certificates: Sequence[Certificate]) -> list[Certificate]:
    return [one for one in _in_order(standing(certificates)) if not one.is_quick]


def summary_table(certificates: Sequence[Certificate], folder: Path, document: Path) -> list[str]:
    """A line for each certificate; superseded ones are marked so."""
    rows = []
    for one in _in_order(certificates):
        n_pass = sum(row.decision.outcome == "pass" for row in one.rows)
        marked = "" if one.superseded_by is None else f", superseded by {one.superseded_by.rpartition('--')[2]}"
        rows.append(
            (
                one.workload.name,
                one.hardware.title,
                one.evidence,
                f"{n_pass} of {len(one.rows)}",
                f"{_outcome(one.decision.outcome)}{marked}",
                _link(one, folder, document),
            )
        )
    if not rows:
        return ["No certificate yet."]
    columns = ("workload", "hardware", "evidence", "rows that pass", "decision", "certificate")
    return markdown_table(columns, rows, n_left=len(columns))


def _title(one: Certificate, folder: Path, document: Path) -> list[str]:
    hardware = one.hardware
    place = f"{hardware.accelerator or hardware.cpu} with {hardware.n_cores} cores"
    if hardware.is_accelerated:
        place = f"{hardware.accelerator}, cache in the memory of {hardware.backend}, driver {hardware.driver}, "
        place += f"{hardware.n_cores} cores"
    return [
        "",
        f"**{one.workload.description}**, on {place}; {one.evidence}; certificate {_link(one, folder, document)}.",
        "",
    ]


def _of_each(
    certificates: Sequence[Certificate],
    folder: Path,
    document: Path,
    lines_of: Callable[[Certificate], list[str]],
) -> list[str]:
    """What lines_of() makes of each standing certificate, under its title; nothing for those it has no lines for."""
    lines: list[str] = []
    for one in _measured(certificates):
        if own := lines_of(one):
            lines += [*_title(one, folder, document), *own]
    return lines[1:] or ["No certificate yet."]


def _row_cells(row: RowEvidence, case: Case, times: float | None) -> tuple[str, ...]:
    quality = case.quality
    size = f"{100 * case.file_bytes / row.native_bytes:.1f} %" if case.file_bytes and row.native_bytes else ""
    decision = case.decision
    stops = [gate.name for gate in case.gates if gate.outcome != "pass" and not gate.name.startswith("spread")]
    n_spread = sum(gate.outcome != "pass" and gate.name.startswith("spread") for gate in case.gates)
    stops += ["spread"] if n_spread else []
    if case.refusal:
        verdict = "refused"
    elif decision is None:
        verdict = "control" if case.name == row.control else ""
    else:
        verdict = "pass" if decision.outcome == "pass" else f"**stop**: {'; '.join(stops)}"
    return (
        row.name,
        case.name,
        size,
        _p50(case, _WARM),
        _p50(case, _COLD),
        "" if times is None else f"{times:,.0f}",
        _p50(case, "save.total_ms"),
        "" if quality is None else f"{quality.kl_mean_nats:.4f}",
        "" if quality is None else f"{100 * quality.agreement:.1f} %",
        verdict,
    )


def rows_table(certificates: Sequence[Certificate], folder: Path, document: Path) -> list[str]:
    """Every case of every row of the standing certificates."""

    def lines_of(one: Certificate) -> list[str]:
        cells = []
        for row in one.rows:
            if row.status == "unsupported":
                cells.append((row.name, f"unsupported: {row.reason}", *[""] * 7, "**stop**"))
                continue
            recompute = row.case(RECOMPUTE).summaries.get(_WARM)
            for case in row.cases:
                own = case.summaries.get(_WARM)
                times = recompute.p50 / own.p50 if recompute and own and case.name != RECOMPUTE else None
                cells.append(_row_cells(row, case, times))
        columns = (
            "K/V", "case", "of native", "first token ms, warm", "cold", "times as fast as recompute", "save ms",
            "KL", f"agreement of {one.workload.steps.forced}", "decision",
        )  # fmt: skip
        return markdown_table(columns, cells, n_left=2)

    return _of_each(certificates, folder, document, lines_of)


def short_table(certificates: Sequence[Certificate], folder: Path, document: Path) -> list[str]:
    """For a first look: what is required of each row, beside recompute, llama.cpp's state file and the control."""

    def lines_of(one: Certificate) -> list[str]:
        cells = []
        for row in one.rows:
            if row.status == "unsupported":
                cells.append((row.name, "unsupported", *[""] * 6, "**stop**"))
                continue
            for name in one.workload.required_profiles:
                case = row.case(name)
                cells.append(
                    (
                        row.name,
                        name,
                        f"{100 * case.file_bytes / row.native_bytes:.1f} %" if row.native_bytes else "",
                        _p50(row.case(RECOMPUTE), _WARM),
                        _p50(row.case("llama-state"), _WARM),
                        _p50(row.case(row.control), _WARM),
                        _p50(case, _WARM),
                        "" if case.quality is None else f"{case.quality.kl_mean_nats:.4f}",
                        _outcome(row.decision.outcome),
                    )
                )
        columns = (
            "K/V", "archive", "size of native", "recompute, ms to first token", "llama.cpp state file", "control",
            "archive, warm", "KL", "row",
        )  # fmt: skip
        return markdown_table(columns, cells, n_left=2)

    return _of_each(certificates, folder, document, lines_of)


def peers_table(certificates: Sequence[Certificate], folder: Path, document: Path) -> list[str]:
    """What other codecs make of the same bytes, beside our archives."""

    def lines_of(one: Certificate) -> list[str]:
        cells = []
        for row in one.rows:
            ours = [
                (case.file_bytes, (row.name, f"LCG3 {case.name}", "yes" if case.is_exact else "no"), case)
                for case in row.cases
                if case.layer_bits
            ]
            found: list[tuple[int, tuple[str, ...]]] = []
            for n_bytes, head, case in ours:
                encode, decode = _p50(case, "save.export_ms"), _p50(case, "warm.decode_ms")
                found.append((n_bytes, (*head, f"{100 * n_bytes / row.native_bytes:.1f} %", encode, decode)))
            for peer in row.peers:
                if peer.encoded_bytes is None:
                    found.append((1 << 62, (row.name, peer.name, "", f"none: {peer.note}", "", "")))
                    continue
                times = [f"{statistics.median_high(ms):,.1f}" if ms else "" for ms in (peer.encode_ms, peer.decode_ms)]
                exact = "yes" if peer.is_exact else "no"
                share = f"{100 * peer.encoded_bytes / peer.source_bytes:.1f} %"
                found.append((peer.encoded_bytes, (row.name, peer.name, exact, share, *times)))
            cells += [cells_of for _, cells_of in sorted(found)]
        columns = ("K/V", "codec", "exact", "of native", "encode ms", "decode ms")
        return markdown_table(columns, cells, n_left=3)

    lines = _of_each(certificates, folder, document, lines_of)
    references = [f"- {words.replace(source, f'[{source}]({url})')}" for words, source, url in published_lines()]
    return [*lines, "", "For reference, of other data on other hardware:", "", *references]


def retrieval_table(certificates: Sequence[Certificate], folder: Path, document: Path) -> list[str]:
    """Retrieval tasks, with those the model does not solve itself."""

    def lines_of(one: Certificate) -> list[str]:
        cells = []
        for row in one.rows:
            for case in row.cases:
                for task in case.retrieval:
                    solved = f"{task.n_solved_evaluated} of {task.n_tasks}"
                    lost = str(task.n_lost) if task.n_solved_evaluated else "the model itself fails"
                    cells.append((row.name, case.name, task.kind, solved, lost))
        columns = ("K/V", "case", "task", "solved without a restore", "lost by it")
        return markdown_table(columns, cells, n_left=3) if cells else []

    return _of_each(certificates, folder, document, lines_of)


def reasons_list(certificates: Sequence[Certificate], folder: Path, document: Path) -> list[str]:
    """Why each row of the standing certificates stops, with the figures."""

    def lines_of(one: Certificate) -> list[str]:
        lines = []
        for row in one.rows:
            lines.append(f"- {row.name}: {_outcome(row.decision.outcome)}")
            lines += [f"  - {reason}" for reason in row.decision.reasons]
        return lines

    return _of_each(certificates, folder, document, lines_of)


def thresholds_table(certificates: Sequence[Certificate], folder: Path, document: Path) -> list[str]:
    """The thresholds of the workloads that come with the package."""
    from .workload import Thresholds, load_workload, workload_names

    names = workload_names()
    workloads = [load_workload(name) for name in names]
    rows = [
        (f"`{field}`", *(f"{getattr(one.thresholds, field):,}" for one in workloads))
        for field in Thresholds.__struct_fields__
    ]
    return markdown_table(("threshold", *names), rows)


def backends_table(certificates: Sequence[Certificate], folder: Path, document: Path) -> list[str]:
    """A line for each backend: how far it was executed, and the certificates that stand. A pass alone qualifies it."""
    rows = []
    for backend in BACKENDS:
        own = [one for one in _measured(certificates) if one.hardware.backend == backend.name]
        is_qualified = any(one.decision.outcome == "pass" for one in own)
        links = [f"{_outcome(one.decision.outcome)} {_link(one, folder, document)}" for one in own]
        tree = folder.parent.parent
        shown = [
            f"[{Path(path).name}]({Path(os.path.relpath(tree / path, document.parent)).as_posix()})"
            for path in backend.shown_by
        ]
        level = "hardware-qualified" if is_qualified else backend.level.value
        rows.append((backend.name, level, backend.executed, ", ".join(shown), ", ".join(links) or "none"))
    columns = ("backend", "evidence", "what was executed", "shown by", "certificates")
    return markdown_table(columns, rows, n_left=len(columns))


TABLES: dict[str, Callable[[Sequence[Certificate], Path, Path], list[str]]] = {
    "summary": summary_table,
    "backends": backends_table,
    "short": short_table,
    "rows": rows_table,
    "peers": peers_table,
    "retrieval": retrieval_table,
    "reasons": reasons_list,
    "thresholds": thresholds_table,
}
