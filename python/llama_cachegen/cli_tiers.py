"""Commands on tiers of a store: push, pull, tiers."""

from __future__ import annotations

import dataclasses
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .cli_common import json_option, print_json
from .cli_store import _key_option, _open, _path_option, _question
from .store import CodecStamp, Store, format_size
from .store.tiers import GuardedTier, SegmentName, TieredStore, TierLimits, open_tier

__all__ = ["pull", "push", "tiers"]

_PROBE_BYTES = 1 << 16
_deadline_option = click.option(
    "--deadline",
    "deadline_s",
    type=click.FloatRange(0.001),
    default=10.0,
    show_default=True,
    help="seconds for each question and each transfer",
)


def _guarded(url: str, deadline_s: float) -> GuardedTier:
    return GuardedTier(open_tier(url, timeout_s=deadline_s), TierLimits(deadline_s=deadline_s))


def _open_existing(path: Path, key_file: Path | None) -> Store:
    return _open(path, key_file, write=True)


@click.command("push")
@click.argument("url")
@click.argument("keys", nargs=-1)
@_path_option
@_key_option
@_deadline_option
@json_option
def push(url: str, keys: tuple[str, ...], path: Path, key_file: Path | None, deadline_s: float, as_json: bool) -> None:
    """Give the tier at URL every segment, or those of KEYS. Exit code 1 if some could not be given."""
    tier = _guarded(url, deadline_s)
    with _open_existing(path, key_file) as opened, TieredStore(opened, [tier], codecs=[]) as tiered:
        (report,) = tiered.push(list(keys) or None)
    if as_json:
        print_json({"tier": report.tier, "ok": report.ok, "outcomes": report.outcomes, "error": tier.last_error,
                    "counters": dataclasses.asdict(tier.counters)})  # fmt: skip
    else:
        for outcome, n in report.outcomes.items():
            click.echo(f"{outcome}: {n}")
        click.echo(f"{format_size(tier.counters.bytes_put)} given{f'; {tier.last_error}' if not report.ok else ''}")
    if not report.ok:
        sys.exit(1)


def _codec(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[CodecStamp]:
    """ "lcg3:exact", or "native"."""
    found = []
    for value in values:
        name, _, profile = value.partition(":")
        found.append(CodecStamp(name=name, profile=profile))
    return found


@click.command("pull")
@click.argument("url")
@click.argument("page", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    default=("lcg3:exact", "native"),
    show_default=True,
    callback=_codec,
    help="NAME or NAME:PROFILE of exact entries to ask for, the first ones preferred",
)
@_path_option
@_key_option
@click.option("--swa-window", type=click.IntRange(0), default=0, show_default=True)
@click.option("--swa-policy", type=click.Choice(["none", "window", "full"]), default="none", show_default=True)
@_deadline_option
@json_option
def pull(
    url: str,
    page: Path,
    codecs: list[CodecStamp],
    path: Path,
    key_file: Path | None,
    swa_window: int,
    swa_policy: Any,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Bring what the tier at URL has of the prompt of a page file. Exit code 1 if the store then has not all of it."""
    identity, tokens = _question(page, swa_window, swa_policy)
    tier = _guarded(url, deadline_s)
    with _open_existing(path, key_file) as opened, TieredStore(opened, [tier], codecs=codecs) as tiered:
        report = tiered.fetch(identity, tokens, deadline_s=deadline_s)
    if as_json:
        print_json({**dataclasses.asdict(report), "prompt_tokens": len(tokens), "error": tier.last_error,
                    "counters": dataclasses.asdict(tier.counters)})  # fmt: skip
    else:
        click.echo(
            f"{report.n_tokens} of {len(tokens)} tokens, {report.n_tokens_before} before; {report.n_segments} "
            f"segments, {format_size(report.n_bytes)} came"
        )
        for why in filter(None, (report.not_kept, tier.last_error)):
            click.echo(why)
    if report.n_tokens < len(tokens):
        sys.exit(1)


@click.command("tiers")
@click.argument("urls", nargs=-1, required=True)
@_deadline_option
@json_option
def tiers(urls: tuple[str, ...], deadline_s: float, as_json: bool) -> None:
    """Try the tiers at URLS: write, read and remove 64 KiB. Exit code 1 if one of them does not do it."""
    facts = [_try(url, deadline_s) for url in urls]
    if as_json:
        print_json(facts)
    else:
        for one in facts:
            times = ", ".join(f"{name} {ms:.1f} ms" for name, ms in one["ms"].items())
            click.echo(
                f"{one['tier']}: {'ok' if one['ok'] else 'failed: ' + one['error']}{f'; {times}' if times else ''}"
            )
    if not all(one["ok"] for one in facts):
        sys.exit(1)


def _try(url: str, deadline_s: float) -> dict[str, Any]:
    tier = _guarded(url, deadline_s)
    probe = SegmentName(f"b{secrets.token_hex(32)}", 1, secrets.token_bytes(32))
    data = secrets.token_bytes(_PROBE_BYTES)
    steps: dict[str, Callable[[], bool]] = {
        "put": lambda: tier.put(probe, data, tier.deadline()) is True,
        "list": lambda: tier.list_group(probe.group, 10, tier.deadline()) == [probe],
        "get": lambda: tier.get(probe, tier.deadline()) == data,
        "delete": lambda: tier.delete(probe, tier.deadline()),
    }
    taken_ms: dict[str, float] = {}
    failed = ""
    for name, step in steps.items():
        begin = time.perf_counter()
        is_done = step()
        taken_ms[name] = (time.perf_counter() - begin) * 1000
        if not is_done:
            failed = f"{name}: {tier.last_error or 'other bytes came back'}"
            break
    if failed and "put" in taken_ms:
        tier.delete(probe, tier.deadline())
    tier.close()
    return {"tier": tier.title, "ok": not failed, "error": failed, "ms": taken_ms}
