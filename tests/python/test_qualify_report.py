"""The report page: one file, its tables equal to the certificates, and it loads in a browser in light and dark."""

from __future__ import annotations

import os
import shutil
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from llama_cachegen.cli import cli
from llama_cachegen.qualify.certificate import Certificate, read_certificate
from llama_cachegen.qualify.plots import Bar, Line, Point, Stack, bars, lines, scatter, stacks
from llama_cachegen.qualify.publish import publish
from llama_cachegen.qualify.report_page import report_page


class Page(HTMLParser):
    """Tables by name, what the page refers to, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.links: list[str] = []
        self.tags: set[str] = set()
        self._rows: list[list[str]] | None = None
        self._open: list[str] = []
        self.feed(text)
        assert self._open == [], self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "link"):
            self._open.append(tag)
        if tag == "table":
            self._rows = self.tables.setdefault(dict(attrs)["data-name"] or "", [])
        elif tag == "tr" and self._rows is not None:
            self._rows.append([])
        elif tag in ("td", "th") and self._rows is not None:
            self._rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag == "table":
            self._rows = None

    def handle_data(self, data: str) -> None:
        if self._rows and self._rows[-1]:
            self._rows[-1][-1] += data


def check_cases(rows: list[list[str]], certificate: Certificate) -> None:
    """The table of cases, cell by cell, against the certificate."""
    head, *body = rows
    expected = [(row, case) for row in certificate.rows for case in row.cases]
    assert len(body) == len(expected)
    for cells, (row, case) in zip(body, expected, strict=True):
        found = dict(zip(head, cells, strict=True))
        assert (found["K/V"], found["case"]) == (row.name, case.name)
        assert found["file bytes"] == (str(case.file_bytes) if case.file_bytes else "")
        for column, phase, name in (
            ("first token ms, warm", "warm.ttft_ms", "p50"),
            ("p90", "warm.ttft_ms", "p90"),
            ("p99", "warm.ttft_ms", "p99"),
            ("cold", "cold.ttft_ms", "p50"),
            ("save ms", "save.total_ms", "p50"),
            ("encode ms", "save.export_ms", "p50"),
        ):
            value = getattr(case.summaries[phase], name) if phase in case.summaries else None
            assert found[column] == ("" if value is None else f"{value:.1f}"), (row.name, case.name, column)
        if case.quality is not None:
            assert float(found["KL"]) == pytest.approx(case.quality.kl_mean_nats, abs=1e-5)
            assert found["agreement"] == f"{100 * case.quality.agreement:.1f} %"
        if case.decision is not None:
            assert found["decision"] == case.decision.outcome and found["why"] == "; ".join(case.decision.reasons)


def test_page(certificate_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    options = ["--html", str(out), "--certificates", str(certificate_path.parent), "--root", str(tmp_path)]
    result = CliRunner().invoke(cli, ["report", *options])
    assert result.exit_code == 0, result.output
    text = out.read_text()
    page = Page(text)
    certificate = read_certificate(certificate_path)
    check_cases(page.tables["cases"], certificate)
    assert [row[1] for row in page.tables["peers"][1:]] == [peer.name for peer in certificate.rows[0].peers]
    assert page.links == ["data:,"] and "script" not in page.tags  # it needs no other file
    assert text.count("<svg") == 5 and "prefers-color-scheme:dark" in text and 'name="viewport"' in text


def test_words_are_escaped(certificate_path: Path) -> None:
    certificate = read_certificate(certificate_path)
    bad = '<img src="x" onerror="alert(1)">&'
    workload = msgspec.structs.replace(certificate.workload, description=bad)
    text = report_page([msgspec.structs.replace(certificate, workload=workload)])
    assert "<img" not in text and "&lt;img" in text
    Page(text)


def test_superseded_ones_are_history(certificate_path: Path, tmp_path: Path) -> None:
    certificate = read_certificate(certificate_path)
    first = publish(certificate, tmp_path)
    second = publish(certificate, tmp_path)
    found = [read_certificate(path) for path in sorted(tmp_path.glob("*.json"))]
    text = report_page(found)
    assert f'data-id="{second.id}"' in text and f'data-id="{first.id}"' not in text
    history = text[text.index("over commits") :]
    assert history[: history.index("</svg>")].count("<circle") == 2
    assert "No certificate yet" in report_page([])


def test_plots_of_extremes() -> None:
    """One sample, equal samples, zeros: a picture, not a division by zero."""
    assert "NaN" not in bars("b", [Bar("a", 5.0, 5.0, 5.0, "c0", "5")], unit="ms").replace("nan", "NaN")
    assert "</svg>" in stacks("s", [Stack("a", [("p0", 0.0)], "0")], unit="ms")
    assert "</svg>" in scatter("p", [Point(0.0, 0.0, "c0", "origin")], x_title="x", y_title="y")
    assert "</svg>" in lines("l", [Line("a", "c0", [(0.0, 0.0)])], x_title="x", y_title="y", labels=["only"])
    assert "&lt;b&gt;" in bars("<b>", [Bar("<b>", 2.0, 1.0, 3.0, "c0", "<b>")], unit="ms")


def browser() -> str | None:
    """Debian's chromium, or the one that $CHROMIUM names."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(browser() is None, reason="no chromium on this machine, and $CHROMIUM names none")
def test_in_a_browser(certificate_path: Path, tmp_path: Path, root: Path) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install --group browser")
    path = tmp_path / "report.html"
    certificate = read_certificate(certificate_path)
    path.write_text(report_page([certificate]), encoding="utf-8")
    complaints: list[str] = []
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        backgrounds = []
        for scheme, width in (("light", 1100), ("dark", 390)):
            page = chromium.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("requestfailed", lambda request: complaints.append(request.url))
            page.goto(path.as_uri())
            rows = page.eval_on_selector_all(
                "table[data-name=cases] tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
            )
            check_cases(rows, certificate)
            # nothing but the tables, which scroll by themselves, is wider than the screen
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator("svg").count() == 5
            backgrounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            shot = root / "build" / f"report-page-{scheme}.png"
            shot.parent.mkdir(exist_ok=True)
            page.screenshot(path=shot, full_page=True)
            assert shot.stat().st_size > 10_000
        chromium.close()
    assert complaints == [] and len(set(backgrounds)) == 2
