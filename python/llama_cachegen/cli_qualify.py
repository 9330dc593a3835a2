"""Commands `qualify` and `report`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .cli_common import json_option, print_json
from .errors import CertificateError
from .qualify.certificate import plain_certificate
from .qualify.claims import CERTIFICATES, check_documents, write_documents
from .qualify.publish import publish
from .qualify.report_page import report_page
from .qualify.run import forget_run, run_qualification
from .qualify.verify import contradictions, read_all
from .qualify.workload import Workload, check_workload, load_workload, workload_names

__all__ = ["qualify", "report"]


def _declared(
    workload: str,
    model: str | None,
    texts: tuple[str, ...],
    rows: str | None,
    n_tokens: int | None,
    n_gpu_layers: int | None,
) -> Workload:
    one = load_workload(workload)
    changes: dict[str, object] = {}
    if model is not None:
        changes |= {"model": model, "model_sha256": "", "description": "a model of the user's"}
    if texts:
        changes["texts"] = list(texts)
    quick: dict[str, object] = {}
    if n_tokens is not None:
        quick["n_prompt_tokens"] = n_tokens
    if rows is not None:
        quick["rows"] = rows.split(",")
    changes |= quick
    if changes:
        changes["quick"] = msgspec.structs.replace(one.quick, **quick)
        changes["name"] = f"own-{one.name}"
        one = msgspec.structs.replace(one, **changes)
    if n_gpu_layers is not None:
        # the same question on other hardware: the name stays
        one = msgspec.structs.replace(one, n_gpu_layers=n_gpu_layers)
    if changes or n_gpu_layers is not None:
        check_workload(one, workload)
    return one


@click.command()
@click.option("--workload", required=True, help=f"{', '.join(workload_names())}, or a TOML file")
@click.option("--model", help="name of a fetched model or a GGUF file, in place of the workload's")
@click.option("--text", "texts", multiple=True, help="in place of the workload's; may be given several times")
@click.option("--rows", help="typed rows in place of the workload's, as in f16/f16,q8_0/f16")
@click.option("--tokens", "n_tokens", type=click.IntRange(64), help="of the prompt, in place of the workload's")
@click.option(
    "--gpu-layers",
    "n_gpu_layers",
    type=click.IntRange(0),
    help="layers on the accelerator, and their part of the cache; more than the model has: all",
)
@click.option("--quick", "is_quick", is_flag=True, help="few tokens and repeats, as the workload declares them: for CI")
@click.option("--resume", is_flag=True, help="go on with a run that was interrupted")
@click.option("--restart", is_flag=True, help="drop what an interrupted run left")
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/qualify"),
    show_default=True,
    help="for the run's files, some GiB for a time, and its journal",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="for the certificate; default: docs/certificates, of a quick run build/qualify/certificates",
)
@json_option
def qualify(
    workload: str,
    model: str | None,
    texts: tuple[str, ...],
    rows: str | None,
    n_tokens: int | None,
    n_gpu_layers: int | None,
    is_quick: bool,
    resume: bool,
    restart: bool,
    work: Path,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure a workload on this machine, decide row by row, and write a certificate. A stop is a result too."""
    declared = _declared(workload, model, texts, rows, n_tokens, n_gpu_layers)
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as bar:
        task = bar.add_task(declared.name)

        def progress(n_done: int, n_total: int, what: str) -> None:
            bar.update(task, completed=n_done, total=n_total, description=what)
            if not console.is_terminal:
                console.print(f"{n_done}/{n_total} {what}", markup=False, highlight=False)

        made = run_qualification(
            declared, is_quick=is_quick, work=work, tree=Path.cwd(), resume=resume, restart=restart, progress=progress
        )
    folder = out or (Path("build/qualify/certificates") if is_quick else CERTIFICATES)
    sealed = publish(made, folder)
    forget_run(declared, work, is_quick=is_quick)
    if as_json:
        print_json(plain_certificate(sealed))
        return
    for row in sealed.rows:
        click.echo(f"{row.name}: {row.decision.outcome}")
        for reason in row.decision.reasons:
            click.echo(f"  {reason}")
    click.echo(f"overall: {sealed.decision.outcome}; {folder / sealed.id}.json")


@click.command()
@click.option("--write", "is_write", is_flag=True, help="fill in the tables and figures of the documents")
@click.option("--check", "is_check", is_flag=True, help="exit with 1 if documents and certificates differ")
@click.option(
    "--html",
    "html_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="write one page with tables and plots that needs no other file",
)
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="of the source tree: README.md and docs/; default: this folder",
)
@click.option(
    "--certificates",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="for --html: a folder other than docs/certificates",
)
@json_option
def report(
    is_write: bool, is_check: bool, html_path: Path | None, root: Path, certificates: Path | None, as_json: bool
) -> None:
    """What the certificates show: listed here, written into documents, checked against them, or as one HTML page."""
    if is_write:
        for path in write_documents(root):
            click.echo(f"written: {path}", err=True)
    folder = certificates or root / CERTIFICATES
    found, problems = read_all(folder)
    problems += contradictions(found)
    if html_path is not None:
        if problems:
            raise CertificateError("; ".join(problems))
        html_path.write_text(report_page(found), encoding="utf-8")
        click.echo(f"written: {html_path}", err=True)
    if is_check:
        problems = check_documents(root)
    if as_json:
        print_json(
            {
                "certificates": [
                    {"id": one.id, "decision": one.decision.outcome, "superseded_by": one.superseded_by}
                    for one in found
                ],
                "problems": problems,
            }
        )
    else:
        for one in found:
            marked = f", superseded by {one.superseded_by}" if one.superseded_by else ""
            click.echo(f"{one.id}: {one.decision.outcome}, {one.evidence}{marked}")
        for problem in problems:
            click.echo(f"problem: {problem}", err=True)
    if problems:
        sys.exit(1)
    if is_check and not as_json:
        click.echo(f"{len(found)} certificates, documents agree")
