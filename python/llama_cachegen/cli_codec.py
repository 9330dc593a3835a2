"""Commands that measure the codec and archives: codec size, quality, bench, alternatives; bench archives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.markdown import Markdown

from .cli_common import json_option, print_json
from .evaluate import archives as archives_module
from .evaluate.alternatives import MARKER_BEGIN, MARKER_END, measure_alternatives, put_between_markers
from .evaluate.quality import N_CONTINUATION_TOKENS, N_PROMPT_TOKENS, QualityReport, measure_quality
from .evaluate.rivals import BYTE_CODECS
from .evaluate.size import N_TOKENS, TYPE_PAIRS, SizeReport, measure_size
from .evaluate.speed import N_ROUNDS, SpeedReport, measure_speed
from .evaluate.texts import TEXT_NAMES, get_text
from .models import resolve_model

__all__ = ["archives", "codec"]

_text_help = f"{', '.join(TEXT_NAMES)}, or a file; may be given several times"
_markdown_option = click.option(
    "--markdown",
    "markdown_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="also write the tables to a file",
)


def _progress() -> Callable[[str], None]:
    console = Console(stderr=True)
    return lambda text: console.print(text, style="dim", markup=False, highlight=False)


def _show(
    report: SizeReport | QualityReport | SpeedReport | archives_module.ArchivesReport,
    as_json: bool,
    markdown_path: Path | None,
) -> None:
    if markdown_path is not None:
        markdown_path.write_text(report.markdown(), encoding="utf-8")
    if as_json:
        print_json(report.as_dict())
    else:
        Console().print(Markdown(report.markdown()))


@click.group()
def codec() -> None:
    """What the codec costs and what it loses, measured."""


@codec.command()
@click.option("--model", default="smollm2", show_default=True, help="name of a fetched model, or a GGUF file")
@click.option("--text", "text_names", multiple=True, default=("reference",), show_default=True, help=_text_help)
@click.option("--tokens", "n_tokens", default=N_TOKENS, show_default=True, type=click.IntRange(32))
@click.option(
    "--types",
    "type_pairs",
    multiple=True,
    default=tuple("/".join(pair) for pair in TYPE_PAIRS),
    show_default=True,
    help="types of K and V, as in f16/q8_0; may be given several times",
)
@click.option(
    "--byte-codecs/--no-byte-codecs",
    default=True,
    show_default=True,
    help="zstd, lz4, blosc2; they need their packages",
)
@_markdown_option
@json_option
def size(
    model: str,
    text_names: tuple[str, ...],
    n_tokens: int,
    type_pairs: tuple[str, ...],
    byte_codecs: bool,
    markdown_path: Path | None,
    as_json: bool,
) -> None:
    """Bytes of a prompt's cache under every profile, beside LCG1, LCG2, LMCache, zstd, lz4 and blosc2."""
    pairs = []
    for pair in type_pairs:
        type_k, slash, type_v = pair.partition("/")
        if not slash:
            raise click.BadParameter(f"{pair!r} is not a pair such as f16/q8_0", param_hint="--types")
        pairs.append((type_k, type_v))
    report = measure_size(
        model,
        [get_text(name) for name in text_names],
        n_tokens=n_tokens,
        type_pairs=pairs,
        byte_codecs=BYTE_CODECS if byte_codecs else (),
        progress=_progress(),
    )
    _show(report, as_json, markdown_path)


@codec.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    default=("smollm2",),
    show_default=True,
    help="name of a fetched model, or a GGUF file; may be given several times",
)
@click.option("--text", "text_names", multiple=True, default=TEXT_NAMES, show_default=True, help=_text_help)
@click.option(
    "--tokens", "n_tokens", default=N_PROMPT_TOKENS, show_default=True, type=click.IntRange(1), help="of the prompt"
)
@click.option(
    "--continuation",
    "n_continuation_tokens",
    default=N_CONTINUATION_TOKENS,
    show_default=True,
    type=click.IntRange(1),
    help="tokens after it, at which the model's answers are compared",
)
@_markdown_option
@json_option
def quality(
    models: tuple[str, ...],
    text_names: tuple[str, ...],
    n_tokens: int,
    n_continuation_tokens: int,
    markdown_path: Path | None,
    as_json: bool,
) -> None:
    """KL, top-1 agreement and perplexity on a cache restored from each profile, against the original F16 cache."""
    report = measure_quality(
        models,
        [get_text(name) for name in text_names],
        n_prompt_tokens=n_tokens,
        n_continuation_tokens=n_continuation_tokens,
        progress=_progress(),
    )
    _show(report, as_json, markdown_path)


@codec.command()
@click.option("--model", default="smollm2", show_default=True, help="name of a fetched model, or a GGUF file")
@click.option("--text", "text_name", default="reference", show_default=True, help=f"{', '.join(TEXT_NAMES)}, or a file")
@click.option("--tokens", "n_tokens", default=N_TOKENS, show_default=True, type=click.IntRange(16))
@click.option(
    "--markdown",
    "markdown_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="also write the tables between the markers of a page; a page that is not there is made",
)
@json_option
def alternatives(model: str, text_name: str, n_tokens: int, markdown_path: Path | None, as_json: bool) -> None:
    """What the alternatives to LCG3's choices would cost, on the cache of a real prompt."""
    page = f"{MARKER_BEGIN}\n{MARKER_END}\n"
    if markdown_path is not None:
        if markdown_path.exists():
            page = markdown_path.read_text(encoding="utf-8")
        put_between_markers(page, "")  # a page without markers is found before the minutes of work
    report = measure_alternatives(model, get_text(text_name), n_tokens=n_tokens, progress=_progress())
    if markdown_path is not None:
        markdown_path.write_text(put_between_markers(page, report.markdown()), encoding="utf-8")
    if as_json:
        print_json(report.as_dict())
    else:
        Console().print(Markdown(report.markdown()))


@codec.command()
@click.option("--model", default="smollm2", show_default=True, help="name of a fetched model, or a GGUF file")
@click.option("--text", "text_name", default="reference", show_default=True, help=f"{', '.join(TEXT_NAMES)}, or a file")
@click.option("--tokens", "n_tokens", default=N_TOKENS, show_default=True, type=click.IntRange(64))
@click.option("--rounds", "n_rounds", default=N_ROUNDS, show_default=True, type=click.IntRange(3))
@click.option("--threads", "n_threads", default=2, show_default=True, type=click.IntRange(1))
@_markdown_option
@json_option
def bench(
    model: str,
    text_name: str,
    n_tokens: int,
    n_rounds: int,
    n_threads: int,
    markdown_path: Path | None,
    as_json: bool,
) -> None:
    """Rates of decoding and encoding beside zstd, lz4, blosc2 and a plain copy, interleaved in one run."""
    report = measure_speed(
        model=resolve_model(model),
        text=get_text(text_name),
        n_tokens=n_tokens,
        n_rounds=n_rounds,
        n_threads=n_threads,
        progress=_progress(),
    )
    _show(report, as_json, markdown_path)


@click.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    default=("smollm2", "gemma3-270m"),
    show_default=True,
    help="name of a fetched model, or a GGUF file; the first is measured, of further ones only greedy tokens compared",
)
@click.option("--text", "text_name", default="reference", show_default=True, help=f"{', '.join(TEXT_NAMES)}, or a file")
@click.option("--tokens", "n_tokens", default=archives_module.N_TOKENS, show_default=True, type=click.IntRange(16))
@click.option("--rounds", "n_rounds", default=archives_module.N_ROUNDS, show_default=True, type=click.IntRange(1))
@click.option("--threads", "n_threads", default=2, show_default=True, type=click.IntRange(1))
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="for the files that are saved and restored; default: that for temporary files",
)
@_markdown_option
@json_option
def archives(
    models: tuple[str, ...],
    text_name: str,
    n_tokens: int,
    n_rounds: int,
    n_threads: int,
    folder: Path | None,
    markdown_path: Path | None,
    as_json: bool,
) -> None:
    """Saving and restoring archives against native pages, llama.cpp's state files and memcpy: time, memory, tokens."""
    report = archives_module.measure_archives(
        models,
        get_text(text_name),
        n_tokens=n_tokens,
        n_rounds=n_rounds,
        n_threads=n_threads,
        folder=folder,
        progress=_progress(),
    )
    _show(report, as_json, markdown_path)
