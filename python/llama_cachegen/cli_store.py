"""Commands on a store: ls, info, inspect, verify, prune, rm, why-miss, stats, soak."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import soak_store
from .cli_common import json_option, print_json
from .errors import StoreError
from .file_kinds import FileKind, kind_of
from .models import cache_dir
from .page import Page
from .store import Store, StoreIdentity, format_size, parse_size, store_identity
from .store.index import Root, Row
from .store_contents import segment_contents

__all__ = ["store"]


def _size(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """Bytes of "32GiB"."""
    try:
        return parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _default_path() -> Path:
    return cache_dir() / "store"


_path_option = click.option(
    "--store",
    "path",
    type=click.Path(path_type=Path),
    envvar="LLAMA_CACHEGEN_STORE",
    default=_default_path,
    show_default="the user's cache directory",
    help="directory of the store; LLAMA_CACHEGEN_STORE sets it too",
)
_key_option = click.option(
    "--key-file", type=click.Path(path_type=Path, exists=True), help="file of 32 bytes, of a keyed store"
)
_dry_run_option = click.option("--dry-run", is_flag=True, help="only say what would go")


def _open(path: Path, key_file: Path | None, *, write: bool) -> Store:
    key = key_file.read_bytes() if key_file is not None else None
    if key is not None and len(key) != 32:
        raise click.UsageError(f"{key_file} has {len(key)} bytes; a key has 32.")
    if write and not path.exists():
        write = False  # a command on a store does not make one
    return Store(path, mode="w" if write else "r", key=key)


def _when(milliseconds: int) -> str:
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _facts(row: Row, root: Root | None = None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "key": row.key.hex(),
        "pos_begin": row.pos_begin,
        "n_tokens": row.n_tokens,
        "file_bytes": row.file_bytes,
        "payload_bytes": row.payload_bytes,
        "divisible": bool(row.divisible),
        "pinned": bool(row.is_pinned),
        "orphan": bool(row.is_orphan),
        "created_ms": row.created_ms,
        "used_ms": row.used_ms,
        "continues": row.parent_key.hex() if row.parent_key else None,
    }
    if root is not None:
        facts |= {"codec": root.codec.title, "model": root.identity.model_name, "namespace": root.identity.namespace}
    return facts


@contextlib.contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on the standard error, where that is a terminal."""
    console = Console(stderr=True)
    with Progress(
        TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, disable=not console.is_terminal, transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task(title, total=None)
        yield lambda n_done, n_total: bar.update(task, completed=n_done, total=n_total)


@click.group()
def store() -> None:
    """Durable pages: what a store holds, whether it is sound, and what may go."""


@store.command("ls")
@_path_option
@_key_option
@json_option
def ls(path: Path, key_file: Path | None, as_json: bool) -> None:
    """Every segment, the one used longest ago first."""
    with _open(path, key_file, write=False) as opened:
        entries = opened.entries()
    if as_json:
        print_json([_facts(row, root) for row, root in entries])
        return
    table = Table()
    for column in ("key", "model", "codec", "tokens", "size", "used", ""):
        table.add_column(column, justify="right" if column in ("tokens", "size") else "left")
    for row, root in entries:
        notes = [word for word, is_so in (("pinned", row.is_pinned), ("orphan", row.is_orphan)) if is_so]
        table.add_row(
            row.key.hex()[:12],
            root.identity.model_name,
            root.codec.title,
            f"{row.pos_begin} .. {row.pos_begin + row.n_tokens - 1}",
            format_size(row.file_bytes),
            "never" if row.used_ms <= row.created_ms else _when(row.used_ms),
            ", ".join(notes),
        )
    Console().print(table)


@store.command("info")
@click.argument("key")
@_path_option
@_key_option
@json_option
def info(key: str, path: Path, key_file: Path | None, as_json: bool) -> None:
    """What one segment is. KEY is its key, or the beginning of it."""
    with _open(path, key_file, write=False) as opened:
        row = opened.entry(key)
        prefix = opened.describe(row.key.hex())
    facts = _facts(row) | {
        "codec": msgspec.to_builtins(prefix.codec),
        "block_tokens": prefix.block_tokens,
        "payload_format": prefix.payload_format,
        "payload_blake3": prefix.payload_blake3,
        "decoded_bytes": prefix.decoded_bytes,
        "component_types": prefix.component_types,
        "measured_error": {one.metric: one.value for one in prefix.measured_error},
        "identity": msgspec.to_builtins(prefix.identity),
    }
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        if name.endswith("_bytes"):
            value = f"{value} ({format_size(value)})"
        elif name.endswith("_ms"):
            value = _when(value)
        click.echo(f"{name}: {value}")


@store.command("inspect")
@click.argument("key")
@_path_option
@_key_option
@json_option
def inspect(key: str, path: Path, key_file: Path | None, as_json: bool) -> None:
    """What is in one segment's file: sections, blocks, the archive. KEY is its key, or the beginning of it.

    Reads every byte of it; exit code 1 if it is damaged.
    """
    with _open(path, key_file, write=False) as opened:
        facts = segment_contents(opened, key)
    if as_json:
        print_json(facts)
    else:
        _print_contents(facts)
    if facts["damage"] is not None:
        sys.exit(1)


def _print_contents(facts: dict[str, Any]) -> None:
    click.echo(f"segment {facts['key']}: tokens {facts['pos_begin']} .. {facts['pos_begin'] + facts['n_tokens'] - 1}")
    click.echo(f"digests: {facts['damage'] or 'match'}")
    table = Table()
    for column in ("section", "offset", "size"):
        table.add_column(column, justify="left" if column == "section" else "right")
    for section in facts["sections"]:
        table.add_row(section["name"], str(section["offset"]), format_size(section["n_bytes"]))
    Console().print(table)
    for block in facts["blocks"]:
        first = " ".join(str(token) for token in block["first_tokens"])
        click.echo(f"block at {block['pos_begin']}: {block['n_tokens']} tokens, {block['hash'][:12]}: {first} ...")
    archive = facts["archive"]
    if archive is not None:
        click.echo(
            f"archive: {archive['n_tokens']} tokens, {format_size(archive['archive_bytes'])}, of them "
            f"{format_size(archive['metadata_bytes'])} metadata"
        )
        for plane in archive["planes"]:
            click.echo(
                f"  {plane['n']} x {plane['kind']} {plane['type']}, {plane['mode']}: {format_size(plane['n_bytes'])}"
            )


@store.command("verify")
@_path_option
@_key_option
@click.option("--quarantine", is_flag=True, help="put damaged segments aside")
@click.option("--repair", is_flag=True, help="the same; also remove what cannot be reached, and mend the index")
@click.option("--dry-run", is_flag=True, help="only say what would be done")
@json_option
def verify(path: Path, key_file: Path | None, quarantine: bool, repair: bool, dry_run: bool, as_json: bool) -> None:
    """Check every byte of every segment; exit code 1 if something has to be done."""
    changes = (quarantine or repair) and not dry_run
    with _open(path, key_file, write=changes) as opened, _progress("segments") as progress:
        report = opened.verify(quarantine=changes, repair=repair and changes, progress=progress)
    if dry_run:
        would = {"damaged": "quarantined"} if quarantine or repair else {}
        would |= {"orphan": "removed", "index": "rebuilt"} if repair else {}
        findings = [
            dataclasses.replace(one, action=f"would be {would[one.kind]}" if one.kind in would else "")
            for one in report.findings
        ]
        report = dataclasses.replace(report, findings=tuple(findings))
    if as_json:
        print_json({"ok": report.ok, "dry_run": dry_run, **dataclasses.asdict(report)})
    else:
        for finding in report.findings:
            done = f" [{finding.action}]" if finding.action else ""
            click.echo(f"{finding.kind}: {finding.name}: {finding.detail}{done}")
        click.echo(
            f"{report.n_segments} segments, {format_size(report.n_bytes)} read: {'ok' if report.ok else 'not sound'}"
        )
    if not report.ok:
        sys.exit(1)


def _print_removed(rows: list[Row], dry_run: bool, as_json: bool) -> None:
    n_bytes = sum(row.file_bytes for row in rows)
    if as_json:
        print_json({"dry_run": dry_run, "n_bytes": n_bytes, "segments": [_facts(row) for row in rows]})
        return
    for row in rows:
        click.echo(f"{row.key.hex()[:12]}  {row.n_tokens} tokens from {row.pos_begin}, {format_size(row.file_bytes)}")
    click.echo(f"{len(rows)} segments, {format_size(n_bytes)} {'would go' if dry_run else 'removed'}")


@store.command("prune")
@click.option(
    "--target",
    "target_bytes",
    callback=_size,
    required=True,
    metavar="SIZE",
    help="what the store may take, such as 16GiB",
)
@_path_option
@_key_option
@_dry_run_option
@json_option
def prune(target_bytes: int, path: Path, key_file: Path | None, dry_run: bool, as_json: bool) -> None:
    """Remove the segments used longest ago until the store takes no more than that."""
    with _open(path, key_file, write=not dry_run) as opened, _progress("removed") as progress:
        removed = opened.prune(target_bytes, dry_run=dry_run, progress=progress)
    _print_removed(removed, dry_run, as_json)


@store.command("rm")
@click.argument("key")
@_path_option
@_key_option
@_dry_run_option
@json_option
def rm(key: str, path: Path, key_file: Path | None, dry_run: bool, as_json: bool) -> None:
    """Remove a segment and all that continue it. KEY is its key, or the beginning of it."""
    with _open(path, key_file, write=not dry_run) as opened:
        _print_removed(opened.remove(key, dry_run=dry_run), dry_run, as_json)


@store.command("why-miss")
@click.argument("page", type=click.Path(path_type=Path, exists=True))
@_path_option
@_key_option
@click.option("--lossy", is_flag=True, help="ask as one who takes lossy entries too")
@click.option("--swa-window", type=click.IntRange(0), default=0, show_default=True)
@click.option("--swa-policy", type=click.Choice(["none", "window", "full"]), default="none", show_default=True)
@json_option
def why_miss(
    page: Path,
    path: Path,
    key_file: Path | None,
    lossy: bool,
    swa_window: int,
    swa_policy: Any,
    as_json: bool,
) -> None:
    """Why the store has not all of the prompt of a page file: the first field that differs, with both values.

    Exit code 1 if it has not.
    """
    identity, tokens = _question(page, swa_window, swa_policy)
    with _open(path, key_file, write=False) as opened:
        found = opened.lookup(identity, tokens, lossy=lossy)
        miss = opened.why_miss(identity, tokens, lossy=lossy)
    facts: dict[str, Any] = {"n_tokens": len(tokens), "n_found": found.n_tokens, "hit": miss is None}
    if miss is not None:
        facts |= {**dataclasses.asdict(miss), "reason": miss.reason.value}
    if as_json:
        print_json(facts)
    elif miss is None:
        click.echo(f"the store has all {len(tokens)} tokens")
    else:
        click.echo(f"the store has {found.n_tokens} of {len(tokens)} tokens; miss: {miss.reason.value}: {miss.detail}")
    if miss is not None:
        sys.exit(1)


def _question(page: Path, swa_window: int, swa_policy: Any) -> tuple[StoreIdentity, np.ndarray[Any, Any]]:
    if kind_of(page) is not FileKind.PAGE:
        raise StoreError(f"{page} is no page file; why-miss takes the identity and the tokens out of one")
    with Page.open(page) as opened:
        if opened.pos_begin:
            raise StoreError(f"{page} begins at position {opened.pos_begin}; a page from position 0 on is needed")
        identity = store_identity(opened.identity, opened.components, swa_window=swa_window, swa_policy=swa_policy)
        return identity, np.array(opened.tokens)


@store.command("soak")
@click.option("--seconds", type=click.FloatRange(1), default=600, show_default=True)
@click.option("--readers", "n_readers", type=click.IntRange(1, 64), default=soak_store.N_READERS, show_default=True)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="where the store it makes lies; default: the system's temporary directory",
)
@json_option
def soak(seconds: float, n_readers: int, directory: Path | None, as_json: bool) -> None:
    """Readers and a writer on a store of their own for a while: wrong bytes, lost entries, memory and disk.

    Exit code 1 if anything was wrong.
    """
    console = Console(stderr=True)
    with Progress(TextColumn("soak"), BarColumn(), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("soak", total=int(seconds))
        result = soak_store.run(
            seconds=seconds,
            n_readers=n_readers,
            directory=directory,
            progress=lambda n_done, n_total: bar.update(task, completed=n_done),
        )
    if as_json:
        print_json(result)
    else:
        table = Table()
        for column in ("process", "did", "MiB", "opened", "own memory, MiB"):
            table.add_column(column, justify="left" if column in ("process", "did") else "right")
        for row in soak_store.table_rows(result):
            table.add_row(*row)
        Console().print(table)
        click.echo(
            f"{result['n_committed']} saves returned, {result['n_segments']} segments at the end; {result['n_pinned']} "
            f"pinned, {result['n_pinned_lost']} of them lost; disk at most {format_size(result['disk_max_bytes'])} of "
            f"{format_size(result['disk_limit_bytes'])} allowed"
        )
        for failure in result["failures"]:
            click.echo(f"failed: {failure}")
        click.echo("soak: " + ("failed" if result["failures"] else "ok"))
    if result["failures"]:
        sys.exit(1)


@store.command("stats")
@_path_option
@_key_option
@json_option
def stats(path: Path, key_file: Path | None, as_json: bool) -> None:
    """What the store holds, how much of it was never read, and what is free."""
    with _open(path, key_file, write=False) as opened:
        facts = dataclasses.asdict(opened.stats())
        facts |= {"path": str(path), "block_tokens": opened.block_tokens, "index": opened.opened_by}
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        click.echo(f"{name}: {format_size(value) if 'bytes' in name else value}")
