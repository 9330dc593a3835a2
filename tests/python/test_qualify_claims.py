"""Documents against certificates: planted lies are found, each by its own words."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from llama_cachegen.cli import cli
from llama_cachegen.errors import ClaimError
from llama_cachegen.qualify.certificate import Certificate, read_certificate, seal, write_certificate
from llama_cachegen.qualify.claims import check_documents, write_documents
from llama_cachegen.qualify.figures import figure
from llama_cachegen.qualify.publish import publish
from llama_cachegen.qualify.tables import TABLES


def test_the_projects_own_documents(root: Path) -> None:
    """What CI fails by: text, tables and certificates of this tree agree."""
    assert check_documents(root) == []


@pytest.fixture
def clean(certificate_path: Path) -> Certificate:
    """As a run from a clean tree would have made it, so that documents can rest on it."""
    certificate = read_certificate(certificate_path)
    software = msgspec.structs.replace(certificate.software, is_clean=True, commit="ab" * 20)
    return msgspec.structs.replace(certificate, software=software)


@pytest.fixture
def tree(tmp_path: Path, clean: Certificate) -> Path:
    """A source tree with a certificate and documents that agree with it."""
    folder = tmp_path / "docs/certificates"
    published = publish(clean, folder)
    selector = f"tiny@{published.hardware.key}"
    tables = "".join(f"<!-- report: {name} -->\n<!-- /report -->\n\n" for name in TABLES)
    (tmp_path / "docs/qualification.md").write_text(tables)
    (tmp_path / "README.md").write_text(
        "# A project\n\n<!-- report: short -->\n<!-- /report -->\n\nThe archive is answered from after\n"
        f"<!-- figure: {selector} f16/f16 balanced summaries.warm.ttft_ms.p50 --><!-- /figure -->, and has\n"
        f"<!-- figure: {selector} f16/f16 balanced file_bytes --><!-- /figure -->. `12 ms` in code is no claim.\n"
    )
    assert write_documents(tmp_path) == [tmp_path / "README.md", tmp_path / "docs/qualification.md"]
    assert check_documents(tmp_path) == [] and write_documents(tmp_path) == []
    return tmp_path


def the_certificate(tree: Path) -> Path:
    return sorted((tree / "docs/certificates").glob("*.json"))[0]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new, 1))


def check(tree: Path) -> list[str]:
    """By the command, which CI runs; its exit code agrees."""
    result = CliRunner().invoke(cli, ["report", "--check", "--root", str(tree)])
    problems = check_documents(tree)
    assert result.exit_code == (1 if problems else 0), result.output
    assert all(problem in result.stderr for problem in problems)
    return problems


def test_lie_a_changed_number(tree: Path) -> None:
    row = read_certificate(the_certificate(tree)).row("f16/f16")
    right = f"{row.case('balanced').summaries['warm.ttft_ms'].p50:,.1f}"
    edit(tree / "README.md", f"| {right} |", "| 0.1 |")
    (problem,) = check(tree)
    assert problem.startswith("README.md, line ") and "not what the certificates say" in problem
    write_documents(tree)
    edit(tree / "README.md", f"-->{right} ms<!-- /figure", "-->0.1 ms<!-- /figure")
    (problem,) = check(tree)
    assert problem.startswith("README.md, line ") and "run `llama-cachegen report --write`" in problem
    write_documents(tree)
    assert check(tree) == []


def test_lie_an_edited_certificate(tree: Path) -> None:
    path = the_certificate(tree)
    median = read_certificate(path).row("f16/f16").case("balanced").summaries["warm.ttft_ms"].p50
    edit(path, f'"p50": {median}', f'"p50": {median / 2}')
    problems = check(tree)
    assert any("was edited: its digest is" in problem for problem in problems)
    with pytest.raises(ClaimError, match="was edited"):
        write_documents(tree)


def test_lie_an_unmarked_stop_beside_a_newer_pass(tree: Path, clean: Certificate) -> None:
    shutil.rmtree(tree / "docs/certificates")
    limits = msgspec.structs.replace(clean.workload.thresholds, size_of_native_max=0.0)
    stopped = decide_again(
        msgspec.structs.replace(clean, workload=msgspec.structs.replace(clean.workload, thresholds=limits))
    )
    assert stopped.decision.outcome == "stop" and clean.decision.outcome == "pass"
    write_certificate(seal(stopped), tree / "docs/certificates")
    later = msgspec.structs.replace(clean.conditions, ended_utc="2999-01-01T00:00:00+00:00")
    newer = msgspec.structs.replace(clean, id=f"{clean.id}-2", conditions=later)
    write_certificate(seal(newer), tree / "docs/certificates")
    problems = check(tree)
    words = f"{clean.id} (stop) and {clean.id}-2 (pass) both stand for tiny on {clean.hardware.key}"
    assert any(words in problem and "must be marked superseded" in problem for problem in problems)
    shutil.rmtree(tree / "docs/certificates")
    first = publish(stopped, tree / "docs/certificates")
    publish(clean, tree / "docs/certificates")
    write_documents(tree)
    assert check(tree) == []
    table = (tree / "docs/qualification.md").read_text()
    assert "**stop**, superseded by " in table and first.id in table


def decide_again(certificate: Certificate) -> Certificate:
    from llama_cachegen.qualify.gates import decide_overall, judge_harness, judge_row

    rows = [judge_row(row, certificate.workload) for row in certificate.rows]
    harness = judge_harness(certificate.harness.empty_ms, rows, certificate.workload)
    return msgspec.structs.replace(certificate, rows=rows, harness=harness, decision=decide_overall(rows, harness))


def test_lie_hardware_never_run(tree: Path) -> None:
    selector = f"tiny@{read_certificate(the_certificate(tree)).hardware.key}"
    edit(
        tree / "README.md",
        f"figure: {selector} f16/f16 balanced file_bytes",
        "figure: tiny@h100-1c f16/f16 balanced file_bytes",
    )
    (problem,) = check(tree)
    assert "no certificate for tiny@h100-1c: it was never run there; there are: tiny@" in problem
    edit(tree / "README.md", "tiny@h100-1c", selector)
    edit(tree / "README.md", "# A project\n", "# A project\n\nRuns well on an H100 and an RTX 5090.\n")
    problems = check(tree)
    assert [problem.partition(": ")[2] for problem in problems] == [
        "H100 is hardware that no certificate was run on",
        "RTX 5090 is hardware that no certificate was run on",
    ]


@pytest.mark.parametrize(
    "words",
    [
        "in 12 ms",
        "12.5 % of it",
        "3x smaller",
        "7 times faster",
        "at 2.6 bits a value",
        "a KL of 0.01",
        "1.5 GB/s",
        "2 s",
    ],
)
def test_lie_a_figure_in_prose(tree: Path, words: str) -> None:
    edit(tree / "README.md", "# A project\n", f"# A project\n\nIt answers {words}.\n")
    (problem,) = check(tree)
    assert problem.startswith("README.md, line 3: ") and "is a figure that no certificate carries" in problem


@pytest.mark.parametrize(
    "words", ["7,000 tokens", "version 0.1.2", "64 greedy tokens", "`12 ms`", "Python 3.10 or newer"]
)
def test_what_is_no_claim(tree: Path, words: str) -> None:
    edit(tree / "README.md", "# A project\n", f"# A project\n\nIt has {words}.\n\n```\n12 ms\n```\n")
    assert check(tree) == []


def test_forms_shown_as_code_are_left_alone(tree: Path) -> None:
    shown = "```\n<!-- report: nothing -->\n<!-- /report -->\n<!-- figure: A@B C D E --><!-- /figure -->\n```\n"
    edit(tree / "README.md", "# A project\n", f"# A project\n\n{shown}")
    assert write_documents(tree) == [] and check(tree) == []


def test_loose_marks_and_wrong_forms(tree: Path, clean: Certificate) -> None:
    edit(tree / "README.md", "<!-- /report -->", "")
    assert any("<!-- report: short --> has no counterpart" in problem for problem in check(tree))
    edit(tree / "README.md", "<!-- report: short -->", "<!-- report: long -->\n<!-- /report -->")
    assert any("no table 'long'; there are summary" in problem for problem in check(tree))
    found = [read_certificate(the_certificate(tree))]
    selector = f"tiny@{clean.hardware.key}"
    assert figure(found, f"{selector} f16/f16 balanced row.native_bytes") == "0.2 MiB"
    assert figure(found, f"{selector} f16/f16 exact quality.agreement") == "100.0 %"
    assert float(figure(found, f"{selector} f16/f16 balanced gate.size")) < 1
    for path in ("file_byte", "summaries.warm.ttft_ms", "decision.outcome", "quality.kl", "gate.none"):
        with pytest.raises(ClaimError, match=r"has none of that path|has no number there"):
            figure(found, f"{selector} f16/f16 balanced {path}")
    with pytest.raises(ClaimError, match="ROW CASE PATH are wanted"):
        figure(found, selector)


def test_a_noisy_machine_is_part_of_the_evidence(clean: Certificate) -> None:
    limits = msgspec.structs.replace(clean.workload.thresholds, others_cores_max=-1.0)
    noisy = decide_again(
        msgspec.structs.replace(clean, workload=msgspec.structs.replace(clean.workload, thresholds=limits))
    )
    assert (clean.evidence, noisy.evidence) == ("synthetic weights", "synthetic weights, noisy machine")


def test_no_evidence(tree: Path, clean: Certificate) -> None:
    folder = tree / "docs/certificates"
    shutil.rmtree(folder)
    dirty = msgspec.structs.replace(clean, software=msgspec.structs.replace(clean.software, is_clean=False))
    publish(dirty, folder)
    assert any("made by code that is no commit's" in problem for problem in check(tree))
    shutil.rmtree(folder)
    publish(msgspec.structs.replace(clean, is_quick=True), folder)
    assert any("is of a quick run, which is no evidence" in problem for problem in check(tree))
