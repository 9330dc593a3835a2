"""Documents that cannot say more than certificates show.

In Markdown, two forms, both invisible where it is rendered:

    <!-- report: TABLE -->  lines made from certificates  <!-- /report -->
    <!-- figure: WORKLOAD@HARDWARE ROW CASE PATH -->12.3 ms<!-- /figure -->

`write_documents` fills them in. `check_documents` finds what they should be now, reads the certificates again, and
looks at the prose of the governed documents: a figure of speed, size or quality outside these forms is a claim that no
certificate carries, and so is the name of hardware that none was run on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import ClaimError
from .certificate import Certificate
from .figures import figure
from .tables import TABLES
from .verify import contradictions, read_all, standing

__all__ = ["CERTIFICATES", "GOVERNED", "check_documents", "write_documents"]

CERTIFICATES = Path("docs/certificates")

GOVERNED = ("README.md", "docs/qualification.md", "docs/certificates/README.md")
"""Documents whose prose is held against the certificates. docs/measurements/ holds what single commands printed."""

_BLOCK = re.compile(r"(<!-- report: ([a-z]+) -->\n)(.*?)(^<!-- /report -->)", re.DOTALL | re.MULTILINE)
_FIGURE = re.compile(r"(<!-- figure: ([^>]*?) -->)(.*?)(<!-- /figure -->)", re.DOTALL)
_LOOSE_MARK = re.compile(r"<!-- /?(?:report|figure)\b[^>]*-->")

_FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.DOTALL | re.MULTILINE)
_INLINE_CODE = re.compile(r"`[^`\n]+`")
_CLAIM = re.compile(
    r"(?<![\w.])\d[\d,.]*\s?(?:"
    r"(?:ms|µs|us|ns|s|seconds?|milliseconds?|minutes?|GB/s|MB/s|GiB/s|MiB/s|tokens/s|symbols/s|bits/value|nats)\b"
    r"|bits a value\b|%|percent\b|[x×](?![\w])|times\s+(?:as|faster|slower|smaller|larger)\b|-fold\b)"
    r"|\bKL\s+(?:of\s+)?\d[\d.]*",
    re.IGNORECASE,
)
_HARDWARE = re.compile(
    r"\b(?:[ABHV][1-3]00|GH200|L40S?|T4|RTX\s?\w*\s?\d{4}\w*|MI\d{3}\w?|M[1-9]\s(?:Ultra|Max|Pro)|Jetson|Apple\sM\d"
    r"|EPYC|Xeon|Ryzen|Threadripper|Graviton\d?|Core\si\d|Radeon|GeForce)\b"
)


def _documents(root: Path) -> Iterator[Path]:
    """Markdown files that may have the forms."""
    yield from sorted(root.glob("*.md"))
    yield from sorted((root / "docs").rglob("*.md"))


def _render(text: str, certificates: Sequence[Certificate], root: Path, document: Path, problems: list[str]) -> str:
    """The text with every form filled in; a form that cannot be keeps its content and is a problem."""
    where = document.relative_to(root).as_posix()

    def block(match: re.Match[str]) -> str:
        make = TABLES.get(match[2])
        if make is None:
            problems.append(f"{where}: no table {match[2]!r}; there are {', '.join(TABLES)}")
            return match[0]
        lines = make(certificates, root / CERTIFICATES, document)
        return f"{match[1]}\n" + "\n".join(lines).strip("\n") + f"\n\n{match[4]}"

    def one_figure(match: re.Match[str]) -> str:
        try:
            return match[1] + figure(certificates, match[2]) + match[4]
        except ClaimError as error:
            problems.append(f"{where}: {error}")
            return match[0]

    def filled(part: str) -> str:
        return _FIGURE.sub(one_figure, _BLOCK.sub(block, part))

    out, end = [], 0
    for fence in _FENCE.finditer(text):  # what is shown as code is left alone
        out += [filled(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*out, filled(text[end:])])


def write_documents(root: Path) -> list[Path]:
    """Fill in every form of every document; the ones that changed.

    Raises:
        ClaimError: a certificate was edited, certificates contradict each other, or a form asks for what none carries;
            nothing was written.
        OSError: a document cannot be read or written.
    """
    certificates, problems = read_all(root / CERTIFICATES)
    problems += contradictions(certificates)
    changed: list[tuple[Path, str]] = []
    for document in _documents(root):
        text = document.read_text(encoding="utf-8")
        rendered = _render(text, certificates, root, document, problems)
        if rendered != text:
            changed.append((document, rendered))
    if problems:
        raise ClaimError("; ".join(problems))
    for document, rendered in changed:
        document.write_text(rendered, encoding="utf-8")
    return [document for document, _ in changed]


def check_documents(root: Path) -> list[str]:
    """Everything in which documents and certificates differ, in words; empty if nothing does.

    Raises:
        OSError: a document cannot be read.
    """
    certificates, problems = read_all(root / CERTIFICATES)
    problems += contradictions(certificates)
    problems += [
        f"{one.id} was made by code that is no commit's: certificates that documents rest on need a clean tree"
        for one in certificates
        if not one.software.is_clean
    ]
    problems += [
        f"{one.id} is of a quick run, which is no evidence for a document" for one in certificates if one.is_quick
    ]
    for document in _documents(root):
        text = document.read_text(encoding="utf-8")
        where = document.relative_to(root).as_posix()
        rendered = _render(text, certificates, root, document, problems)
        if rendered != text:
            problems.append(
                f"{where}, line {_first_difference(text, rendered)}: not what the certificates say; {_ADVICE}"
            )
        if where in GOVERNED:
            problems += _claims_in(text, certificates, where)
    return problems


_ADVICE = "run `llama-cachegen report --write`"


def _first_difference(text: str, rendered: str) -> int:
    lines, others = text.splitlines(), rendered.splitlines()
    for number, (line, other) in enumerate(zip(lines, others, strict=False), start=1):
        if line != other:
            return number
    return min(len(lines), len(others)) + 1


def _blank(match: re.Match[str]) -> str:
    """As many lines, nothing on them: line numbers stay."""
    return "\n" * match[0].count("\n")


def _claims_in(text: str, certificates: Sequence[Certificate], where: str) -> Iterator[str]:
    prose = text
    for form in (_FENCE, _BLOCK, _FIGURE, _INLINE_CODE):
        prose = form.sub(_blank, prose)
    ran_on = " ".join(f"{one.hardware.cpu} {one.hardware.accelerator}" for one in standing(certificates)).lower()
    for number, line in enumerate(prose.splitlines(), start=1):
        if mark := _LOOSE_MARK.search(line):
            yield f"{where}, line {number}: {mark[0]} has no counterpart"
        for match in _CLAIM.finditer(line):
            yield (
                f"{where}, line {number}: {match[0].strip()!r} is a figure that no certificate carries; mark it up as "
                "docs/qualification.md says, or take it out"
            )
        for match in _HARDWARE.finditer(line):
            if match[0].lower() not in ran_on:
                yield f"{where}, line {number}: {match[0]} is hardware that no certificate was run on"
