"""All certificates as one HTML page that needs no other file, no script and no network."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape

from .cases import LLAMA, NATIVE, NATIVE_ARCHIVE, RECOMPUTE
from .certificate import Case, Certificate, RowEvidence
from .plots import Bar, Line, Point, Stack, bars, lines, scatter, stacks
from .published import published_lines
from .verify import standing

__all__ = ["report_page"]

_PHASES = {"open_ms": "p0", "reserve_ms": "p1", "decode_ms": "p2", "commit_ms": "p3", "first_token_ms": "p4"}
_PHASE_NAMES = ("open", "reserve", "decode or copy", "commit", "first token")
_CSS_OF = {RECOMPUTE: "c0", LLAMA: "c1", NATIVE: "c2", NATIVE_ARCHIVE: "c2"}

_STYLE = """
:root{color-scheme:light dark;--bg:#fcfcfb;--fg:#1d1f22;--dim:#5c626a;--rule:#dcdfe3;--stop:#b3261e;--pass:#1b6e3c;
--c0:#8a9099;--c1:#c26a1c;--c2:#2f6fb5;--c3:#1f8a70;--c4:#8a4fb0;--c5:#b8860b;--c6:#c0437a}
@media (prefers-color-scheme:dark){:root{--bg:#15171a;--fg:#e6e8eb;--dim:#9aa2ac;--rule:#33383e;--stop:#ff8a80;
--pass:#7bd69b;--c0:#868d96;--c1:#e08e45;--c2:#6ba6e8;--c3:#4fbf9f;--c4:#bb86e0;--c5:#d9b44a;--c6:#e87fab}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--bg);color:var(--fg);
font:1rem/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.5rem;border-top:1px solid var(--rule);padding-top:1rem}
h3{font-size:1rem;margin:1.5rem 0 .3rem}
p.dim,figcaption{color:var(--dim);font-size:.9rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th:first-child,td:first-child,th.l,td.l{text-align:left}
td.why{white-space:normal;min-width:16rem;text-align:left}
.stop{color:var(--stop);font-weight:600}.pass{color:var(--pass);font-weight:600}
figure{margin:.5rem 0 1rem}svg{width:100%;max-width:40rem;height:auto;display:block}
svg text{font:10px system-ui,sans-serif;fill:var(--fg)}svg text.tick{fill:var(--dim);font-size:9px}
.grid{stroke:var(--rule);stroke-width:1}.whisker{stroke:var(--fg);stroke-width:1.5}
.line{fill:none!important;stroke-width:1.5}.dashed{stroke-dasharray:4 3}
.c0,.p0{fill:var(--c0);stroke:var(--c0)}.c1,.p1{fill:var(--c1);stroke:var(--c1)}.c2,.p2{fill:var(--c2);stroke:var(--c2)}
.c3,.p3{fill:var(--c3);stroke:var(--c3)}.c4,.p4{fill:var(--c4);stroke:var(--c4)}.c5{fill:var(--c5);stroke:var(--c5)}
.c6{fill:var(--c6);stroke:var(--c6)}rect{stroke-width:0}
.key{display:inline-block;width:.7em;height:.7em;margin:0 .3em 0 .8em;border-radius:2px;background:var(--dim)}
.key.c0,.key.p0{background:var(--c0)}.key.c1,.key.p1{background:var(--c1)}.key.c2,.key.p2{background:var(--c2)}
.key.c3,.key.p3{background:var(--c3)}.key.c4,.key.p4{background:var(--c4)}.key.c5{background:var(--c5)}
.key.c6{background:var(--c6)}
details{margin:.5rem 0}summary{cursor:pointer}
"""


def _css(case: str, certificate: Certificate) -> str:
    if case in _CSS_OF:
        return _CSS_OF[case]
    return f"c{3 + certificate.workload.profiles.index(case) % 4}"


def _key(names: Sequence[tuple[str, str]]) -> str:
    return "".join(f'<span class="key {css}"></span>{escape(name)}' for css, name in names)


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"


def _ms(value: float) -> str:
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _timed(row: RowEvidence, phase: str) -> list[Case]:
    return [case for case in row.cases if phase in case.summaries]


def _first_tokens(row: RowEvidence, certificate: Certificate) -> str:
    drawn = []
    for case in _timed(row, "warm.ttft_ms"):
        one = case.summaries["warm.ttft_ms"]
        drawn.append(Bar(case.name, one.p50, one.min, one.max, _css(case.name, certificate), f"{_ms(one.p50)} ms"))
    caption = "Time to the first token, files in the page cache: median, smallest and largest."
    return _figure(bars(f"time to first token, {row.name}", drawn, unit="ms"), caption)


def _phases(row: RowEvidence) -> str:
    drawn = []
    for case in _timed(row, "warm.restore_ms"):
        if f"warm.{next(iter(_PHASES))}" in case.summaries:
            parts = [(css, case.summaries[f"warm.{phase}"].p50) for phase, css in _PHASES.items()]
        else:
            parts = [("p2", case.summaries["warm.restore_ms"].p50), ("p4", case.summaries["warm.first_token_ms"].p50)]
        drawn.append(Stack(case.name, parts, f"{_ms(sum(value for _, value in parts))} ms"))
    keys = _key(list(zip(_PHASES.values(), _PHASE_NAMES, strict=True)))
    return _figure(stacks(f"phases of a warm restore, {row.name}", drawn, unit="ms"), f"Phases, medians:{keys}")


def _sizes(certificate: Certificate) -> str:
    points = [
        Point(
            case.bits_per_value,
            case.quality.kl_mean_nats,
            _css(case.name, certificate),
            f"{row.name}, {case.name}: {case.bits_per_value:.2f} bits a value, KL {case.quality.kl_mean_nats:.4f}",
        )
        for row in certificate.rows
        for case in row.cases
        if case.layer_bits and case.bits_per_value is not None and case.quality is not None
    ]
    if not points:
        return ""
    keys = _key([(_css(name, certificate), name) for name in certificate.workload.profiles])
    svg = scatter("size against KL", points, x_title="bits a value", y_title="mean KL, nats")
    return _figure(svg, f"Size against KL of every archive, all rows:{keys}")


def _layer_bits(row: RowEvidence, certificate: Certificate) -> str:
    series = []
    for case in row.cases:
        for kind in ("k", "v"):
            points = [(float(one.layer), value) for one in case.layer_bits if (value := getattr(one, kind)) is not None]
            if points and not case.is_exact:
                series.append(
                    Line(f"{case.name} {kind.upper()}", _css(case.name, certificate), points, is_dashed=kind == "v")
                )
    if not series:
        return ""
    keys = _key([(_css(name, certificate), name) for name in certificate.workload.profiles if name != "exact"])
    svg = lines(f"bits of each layer, {row.name}", series, x_title="layer", y_title="bits a value, K and V")
    return _figure(svg, f"Bits a value of each layer's K (line) and V (dashed), lossy archives:{keys}")


def _history(certificate: Certificate, every: Sequence[Certificate]) -> str:
    same = sorted(
        (one for one in every if one.subject == certificate.subject), key=lambda one: one.conditions.ended_utc
    )
    profile = certificate.workload.required_profiles[0]
    series = []
    names = [row.name for row in certificate.rows if row.status == "measured"]
    for i, name in enumerate(names):
        points = []
        for at, one in enumerate(same):
            for row in one.rows:
                found = [case.summaries.get("warm.ttft_ms") for case in row.cases if case.name == profile]
                if row.name == name and found and found[0] is not None:
                    points.append((float(at), found[0].p50))
        if points:
            series.append(Line(name, f"c{i % 7}", points))
    if not series:
        return ""
    labels = [(one.software.commit or one.software.package_sha256)[:7] for one in same]
    svg = lines(f"first token of {profile} over commits", series, x_title="commit", y_title="ms, warm", labels=labels)
    keys = _key([(line.css, line.label) for line in series])
    return _figure(svg, f"Warm restore and first token of {escape(profile)} over commits, a line for each row:{keys}")


_COLUMNS = (
    "K/V", "case", "file bytes", "bits/value", "first token ms, warm", "p90", "p99", "cold", "save ms", "encode ms",
    "peak MiB, restore", "KL", "agreement", "perplexity change", "greedy", "decision", "why",
)  # fmt: skip


def _cells(row: RowEvidence, case: Case) -> list[str]:
    def of(phase: str, name: str = "p50") -> str:
        value = getattr(case.summaries[phase], name) if phase in case.summaries else None
        return "" if value is None else f"{value:.1f}"

    quality, decision = case.quality, case.decision
    change = ""
    if quality is not None:
        change = f"{100 * (quality.perplexity_restored / quality.perplexity_evaluated - 1):+.2f} %"
    reasons = "; ".join(decision.reasons) if decision else case.refusal
    return [
        row.name,
        case.name,
        str(case.file_bytes) if case.file_bytes else "",
        "" if case.bits_per_value is None else f"{case.bits_per_value:.3f}",
        of("warm.ttft_ms"),
        of("warm.ttft_ms", "p90"),
        of("warm.ttft_ms", "p99"),
        of("cold.ttft_ms"),
        of("save.total_ms"),
        of("save.export_ms"),
        "" if case.restore_peak_bytes is None else f"{case.restore_peak_bytes / 2**20:.1f}",
        "" if quality is None else f"{quality.kl_mean_nats:.5f}",
        "" if quality is None else f"{100 * quality.agreement:.1f} %",
        change,
        "" if quality is None else f"{100 * quality.free_agreement:.1f} %",
        decision.outcome if decision else "control" if case.name == row.control else "",
        reasons,
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, name: str) -> str:
    left = ("case", "codec", "note", "task", "why")
    head = "".join(f'<th class="{"l" if column in left else ""}">{escape(column)}</th>' for column in columns)
    body = []
    for row in rows:
        cells = []
        for column, cell in zip(columns, row, strict=True):
            css = {"why": "why", "decision": cell}.get(column, "l" if column in left else "")
            cells.append(f'<td class="{escape(css, quote=True)}">{escape(cell)}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    table = f'<table data-name="{name}"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _peers(certificate: Certificate) -> str:
    rows = [
        [
            row.name,
            peer.name,
            str(peer.source_bytes) if peer.source_bytes else "",
            "" if peer.encoded_bytes is None else str(peer.encoded_bytes),
            "" if peer.encoded_bytes is None else f"{100 * peer.encoded_bytes / peer.source_bytes:.1f} %",
            f"{statistics.median_high(peer.encode_ms):.1f}" if peer.encode_ms else "",
            f"{statistics.median_high(peer.decode_ms):.1f}" if peer.decode_ms else "",
            peer.note,
        ]
        for row in certificate.rows
        for peer in row.peers
    ]
    columns = ("K/V", "codec", "native bytes", "bytes", "of native", "encode ms", "decode ms", "note")
    references = "".join(f"<li>{escape(words)}: {escape(url)}</li>" for words, _, url in published_lines())
    table = _table(columns, rows, name="peers")
    return f'{table}<p class="dim">For reference, of other data on other hardware:</p><ul class="dim">{references}</ul>'


def _retrieval(certificate: Certificate) -> str:
    rows = []
    for row in certificate.rows:
        for case in row.cases:
            for one in case.retrieval:
                words = "the model itself fails" if one.n_solved_evaluated == 0 else str(one.n_lost)
                rows.append([row.name, case.name, one.kind, str(one.n_tasks), str(one.n_solved_evaluated), words])
    if not rows:
        return "<p>No retrieval: the model has no words.</p>"
    return _table(("K/V", "case", "task", "asked", "solved without a restore", "lost by it"), rows, name="retrieval")


def _section(certificate: Certificate, every: Sequence[Certificate]) -> str:
    software, hardware, conditions = certificate.software, certificate.hardware, certificate.conditions
    outcome = certificate.decision.outcome
    parts = [
        f"<h2>{escape(certificate.workload.description)}</h2>",
        f'<p><span class="{outcome}">{outcome}</span>, {escape(certificate.evidence)}; '
        f"{escape(hardware.title)}, {escape(hardware.os)}, "
        f"{escape(hardware.kernel)}; commit {escape(software.commit[:12] or 'unknown')}; "
        f"{escape(conditions.started_utc)}, {conditions.duration_s / 60:.0f} minutes.</p>",
        f'<p class="dim">{escape(certificate.id)}, SHA-256 {certificate.digest[:16]}…</p>',
        _sizes(certificate),
        _history(certificate, every),
    ]
    for i, row in enumerate(certificate.rows):
        parts.append(f"<details{' open' if i == 0 else ''}><summary>{escape(row.name)}: "
                     f'<span class="{row.decision.outcome}">{row.decision.outcome}</span></summary>')  # fmt: skip
        if row.status == "measured":
            parts += [_first_tokens(row, certificate), _phases(row), _layer_bits(row, certificate)]
        else:
            parts.append(f"<p>{escape(row.reason)}</p>")
        parts.append("</details>")
    cells = [_cells(row, case) for row in certificate.rows for case in row.cases]
    parts += ["<h3>All cases</h3>", _table(_COLUMNS, cells, name="cases")]
    parts += ["<h3>Other codecs on the same bytes</h3>", _peers(certificate)]
    parts += ["<h3>Retrieval</h3>", _retrieval(certificate)]
    return f'<section data-id="{escape(certificate.id, quote=True)}">{"".join(parts)}</section>'


def report_page(certificates: Sequence[Certificate]) -> str:
    """The page. Superseded certificates are in the history only."""
    shown = sorted(standing(certificates), key=lambda one: (one.workload.name, one.hardware.key))
    sections = "".join(_section(one, certificates) for one in shown) or "<p>No certificate yet.</p>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>llama-cachegen: qualification</title><style>{_STYLE}</style></head><body>"
        "<h1>llama-cachegen: qualification</h1>"
        '<p class="dim">Made by <code>llama-cachegen report --html</code> out of certificates alone.</p>'
        f"{sections}</body></html>\n"
    )
