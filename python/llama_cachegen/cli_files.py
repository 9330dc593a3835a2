"""Commands on files of every format: inspect, verify, transcode."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from .cli_common import json_option, mib, print_json, threads_option
from .codec import PROFILES
from .errors import CachegenError
from .file_checks import check_file
from .file_kinds import FileKind, kind_of
from .file_reports import describe
from .layer_bars import layer_lines
from .transcode import transcode as transcode_file

__all__ = ["inspect", "transcode", "verify"]

_COLOURS = {"K": "cyan", "V": "magenta", "AUX": "yellow"}
_SECTIONS = {
    "page": "header, identity and tokens",
    "metadata": "metadata (header, records, digests)",
    "tables": "probability tables",
    "exact_rows": "exact rows",
    "scales": "scales",
    "words": "words of the entropy coder",
    "states": "first states of the coder",
    "raw": "values and bits kept as they are",
    "overhead": "unit headers and padding",
    "lengths": "lengths of streams",
    "maxima": "maxima",
    "streams": "streams of the entropy coder",
    "container": "the container itself",
}


# inspect


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def inspect(file: Path, as_json: bool) -> None:
    """What a file holds: a page, or an archive of any format that is read here."""
    facts = describe(file)
    if as_json:
        print_json(facts)
        return
    click.echo(f"format: {FileKind(facts['kind']).title}, {_size(facts['file_bytes'])}")
    _PRINTERS[FileKind(facts["kind"])](facts)


def _size(n_bytes: int) -> str:
    return f"{n_bytes:,} bytes" + (f" ({mib(n_bytes)})" if n_bytes >= 1 << 20 else "")


def _bits(value: float | None) -> str:
    return "no values" if value is None else f"{value:.2f} bits a value"


def _print_identity(facts: Mapping[str, Any]) -> None:
    for key, value in facts["identity"].items():
        click.echo(f"{key}: {value}")


def _print_page(facts: Mapping[str, Any]) -> None:
    _print_identity(facts)
    click.echo(
        f"tokens: {facts['n_tokens']} from position {facts['pos_begin']}; payload: {facts['payload_bytes']} bytes"
    )
    _print_rows(facts["components"])


def _print_rows(rows: list[dict[str, Any]]) -> None:
    table = Table()
    for column in rows[0]:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _print_lcg3(facts: Mapping[str, Any]) -> None:
    lossless = "lossless" if facts["is_exact"] else "lossy"
    click.echo(f"profile: {facts['profile'] or 'without a name'}, {lossless}")
    exact = f", the first {facts['n_exact_tokens']} of them exact" if facts["n_exact_tokens"] else ""
    click.echo(
        f"tokens: {facts['n_tokens']:,}{exact}; in blocks of up to {facts['block_tokens']:,}: {facts['n_blocks']}"
    )
    planes = facts["planes"]
    types = "; ".join(
        f"{kind}: {', '.join(sorted({plane['type'] for plane in planes if plane['kind'] == kind}))}"
        for kind in sorted({plane["kind"] for plane in planes})
    )
    click.echo(textwrap.fill(f"planes: {len(planes)} in {len(facts['layers'])} layers; {types}", 80))
    click.echo(f"symbol sets: {facts['n_sets']}, with up to {facts['n_classes']} classes of the token before")
    click.echo(f"source: {_size(facts['native_bytes'])}, {facts['ratio']:.2f} times as large")
    click.echo(f"size: {_bits(facts['bits_per_value'])}, everything counted")
    _print_sections(facts)
    _print_layers(facts, "without exact rows, tables and metadata")


def _print_archive_page(facts: Mapping[str, Any]) -> None:
    _print_identity(facts)
    click.echo(f"positions: {facts['pos_begin']} .. {facts['pos_begin'] + facts['n_tokens'] - 1}")
    click.echo(f"archive: {_size(facts['archive_bytes'])}")
    _print_lcg3(facts)


def _print_lmcache(facts: Mapping[str, Any]) -> None:
    click.echo(
        f"tokens: {facts['n_tokens']:,} in {facts['n_chunks']} sub-chunks; layers: {facts['n_layers']}; "
        f"{facts['n_heads']} heads of {facts['head_size']}; values: {facts['value_type']}"
    )
    click.echo(f"size: {_bits(facts['bits_per_value'])}, everything counted; ratio {facts['ratio']:.2f}")
    _print_sections(facts)
    _print_layers(facts, "with their tables, lengths and maxima")


def _print_ckg1(facts: Mapping[str, Any]) -> None:
    click.echo(
        f"page: {_size(facts['page_bytes'])} in {facts['n_records']} records; ratio {facts['ratio']:.2f}. "
        "Layers and types are not in the archive."
    )
    _print_rows(facts["kinds"])


def _print_segment(facts: Mapping[str, Any]) -> None:
    click.echo(f"tokens: {facts['n_tokens']}; channels: {facts['n_channels']}; bins: {facts['bins']}")
    click.echo(f"size: {_bits(facts['bits_per_value'])}; {facts['stream_bytes']:,} bytes of coded symbols")


def _print_sections(facts: Mapping[str, Any]) -> None:
    click.echo("\nwhere the bytes go:")
    for name, n_bytes in facts["bytes"].items():
        if n_bytes:
            click.echo(f"  {_SECTIONS[name]:<36} {n_bytes:>15,}  {100 * n_bytes / facts['file_bytes']:>5.1f} %")


def _print_layers(facts: Mapping[str, Any], what: str) -> None:
    is_terminal = sys.stdout.isatty()
    lines = layer_lines(
        facts["layers"],
        columns=min(120, shutil.get_terminal_size().columns) if is_terminal else 80,
        ascii_only=not _can_print("█▏"),
        style=_coloured if is_terminal else _plain,
    )
    if lines:
        click.echo(f"\nlayer by layer, {what}:")
        for line in lines:
            click.echo(line)


def _can_print(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _plain(text: str, kind: str) -> str:
    return text


def _coloured(text: str, kind: str) -> str:
    return click.style(text, fg=_COLOURS[kind]) if text else text


_PRINTERS: dict[FileKind, Callable[[Mapping[str, Any]], None]] = {
    FileKind.PAGE: _print_page,
    FileKind.ARCHIVE_PAGE: _print_archive_page,
    FileKind.LCG3: _print_lcg3,
    FileKind.CKG1: _print_ckg1,
    FileKind.LCG2: _print_segment,
    FileKind.LCG1: _print_segment,
    FileKind.LMCACHE: _print_lmcache,
}


# verify


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--decode", is_flag=True, help="also decode everything, block by block, and throw it away")
@threads_option
@json_option
def verify(files: tuple[Path, ...], decode: bool, n_threads: int, as_json: bool) -> None:
    """Check files as far as their formats can tell; exit code 1 if one is damaged."""
    findings: dict[str, dict[str, Any]] = {}
    for file in files:
        kind, checked, finding = None, None, None
        try:
            kind = kind_of(file)
            checked = check_file(file, decode=decode, n_threads=n_threads)
        except CachegenError as error:
            finding = str(error)
        except OSError as error:
            finding = f"{file}: {error.strerror or error}"
        except MemoryError:
            finding = f"{file} decodes to more than there is memory for"
        findings[str(file)] = {
            "ok": finding is None,
            "kind": kind.value if kind else None,
            "checked": checked,
            "error": finding,
        }
    if as_json:
        print_json(findings)
    else:
        for name, found in findings.items():
            if found["ok"]:
                click.echo(f"{name}: {FileKind(found['kind']).title}, {found['checked']}: ok")
            else:
                click.echo(found["error"])
    if not all(found["ok"] for found in findings.values()):
        sys.exit(1)


# transcode


@click.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--profile", type=click.Choice(list(PROFILES)), help="profile of the archive to write; for a page: balanced"
)
@click.option(
    "--like", type=click.Path(path_type=Path), help="write a page file with the tokens, identity and layout of this one"
)
@click.option("--bare", is_flag=True, help="write the archive alone, without tokens and identity")
@click.option("--force", is_flag=True, help="replace OUT; keep a lossy archive's values under a lossless profile")
@threads_option
@json_option
def transcode(
    source: Path,
    target: Path,
    profile: str | None,
    like: Path | None,
    bare: bool,
    force: bool,
    n_threads: int,
    as_json: bool,
) -> None:
    """Turn a page file into an archive, or an archive into one of another profile or into a page file.

    \b
    IN                 without options           with --profile
    page file          archive page, balanced    archive page
    archive page file  page file, if lossless    archive page
    LCG3 archive       needs --profile or --like LCG3 archive
    """
    if like is not None and (profile is not None or bare):
        raise click.UsageError("--like excludes --profile and --bare: it makes a page file, which has no archive.")
    done = transcode_file(source, target, profile=profile, like=like, bare=bare, n_threads=n_threads, force=force)
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    made = FileKind(done.target_kind).title + (f", profile {done.profile}" if done.profile else "")
    click.echo(f"{done.source}: {FileKind(done.source_kind).title}, {_size(done.source_bytes)}")
    click.echo(f"{done.target}: {made}, {_size(done.target_bytes)}")
    click.echo(
        f"ratio {done.ratio:.2f}, {done.bits_per_value:.2f} bits a value, {done.n_tokens:,} tokens, "
        f"{done.seconds:.2f} s, of them {done.write_seconds:.2f} s writing"
    )
    for note in done.notes:
        click.echo(f"note: {note}", err=True)
