"""What a restored cache does to the model's answers, teacher-forced, against the unquantised cache it was made from.

A prompt is evaluated once. The tokens that follow it in the text are then evaluated on the original cache, and again on
the cache restored from an archive of each profile; the model's distributions at every one of these positions are
compared. The original cache is F16.

All of these evaluations take batches of 32 tokens: llama.cpp's attention on a CPU then adds up in an order that does
not depend on which cells hold the tokens, so that an exact restore gives exactly the original's logits. Another order
alone changes them, in models with quantised weights visibly so; the row `NATIVE_OTHER_BATCHES` says how much.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._binding import llama
from ..codec import PROFILES
from ..engine import Engine
from ..errors import CachegenError, DecodeError
from ..models import resolve_model
from ..session import Session
from .caches import CacheCopy, copy_cache, n_native_bytes, n_values, native_rows
from .report import ModelFile, Setting, markdown_table, setting_lines
from .rivals import lmcache_values
from .texts import Text

__all__ = [
    "NATIVE_OTHER_BATCHES",
    "N_CONTINUATION_TOKENS",
    "N_PROMPT_TOKENS",
    "Divergence",
    "QualityReport",
    "QualityRow",
    "compare_logits",
    "evaluate_all_logits",
    "measure_quality",
]

N_PROMPT_TOKENS = 3584
N_CONTINUATION_TOKENS = 512

NATIVE_OTHER_BATCHES = "(native, batches of 512)"
"""The cache restored from its own bytes, no archive, and evaluated in larger batches: what rounding alone does."""

_N_BATCH = 32
_N_BATCH_OTHER = 512

_GOAL_PROFILE = "balanced"
_GOAL_KL_NATS = 0.02
_GOAL_BITS_PER_VALUE = 2.75

_ROWS_AT_A_TIME = 32


@dataclasses.dataclass(frozen=True)
class Divergence:
    """Two series of distributions compared.

    Attributes:
        kl_mean_nats, kl_p99_nats, kl_max_nats: KL(original || restored) over the positions, natural logarithm.
        top1_agreement: share of positions with the same most likely token.
        perplexity_original, perplexity_restored: of the text's own tokens.
    """

    kl_mean_nats: float
    kl_p99_nats: float
    kl_max_nats: float
    top1_agreement: float
    perplexity_original: float
    perplexity_restored: float


@dataclasses.dataclass(frozen=True)
class QualityRow:
    """One profile on one text with one model.

    Attributes:
        model: file name.
        text: name of the text.
        profile: of LCG3, or `NATIVE_OTHER_BATCHES`.
        source: what the archive was made from, "page" or "state".
        n_prompt_tokens: tokens whose cache was restored.
        bits_per_value: bits of the archives by number of their K and V values.
        equals_lmcache: of the profile `lmcache`: every restored value has the bits that LMCache's own encoder and
            decoder give (the numpy reference); None for other profiles.
        divergence: from the original cache.
    """

    model: str
    text: str
    profile: str
    source: str
    n_prompt_tokens: int
    bits_per_value: float
    equals_lmcache: bool | None
    divergence: Divergence


@dataclasses.dataclass(frozen=True)
class QualityReport:
    """Divergences, and what they were measured with."""

    setting: Setting
    models: tuple[ModelFile, ...]
    n_continuation_tokens: int
    texts: tuple[Text, ...]
    rows: tuple[QualityRow, ...]

    def goals(self) -> list[tuple[str, bool]]:
        """What was to be reached, with the figures, and whether it was."""
        goals = []
        for row in self.rows:
            if row.profile == _GOAL_PROFILE:
                kl, bits = row.divergence.kl_mean_nats, row.bits_per_value
                words = (
                    f"{row.model}, {row.text}, {row.profile}: KL {kl:.4f} at {bits:.3f} bits/value, at most"
                    f" {_GOAL_KL_NATS} at {_GOAL_BITS_PER_VALUE}"
                )
                goals.append((words, kl <= _GOAL_KL_NATS and bits <= _GOAL_BITS_PER_VALUE))
            if row.equals_lmcache is not None:
                words = f"{row.model}, {row.text}, {row.profile}: the values are LMCache's own"
                goals.append((words, row.equals_lmcache))
        return goals

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; the texts without their words."""
        result = dataclasses.asdict(self)
        for text in result["texts"]:
            del text["text"]
        result["goals"] = [{"goal": words, "is_reached": is_reached} for words, is_reached in self.goals()]
        return result

    def markdown(self) -> str:
        """A page with tables."""
        lines = [
            "# Codec quality",
            "",
            "Made by `llama-cachegen codec quality`. A prompt is evaluated with an F16 cache; then"
            f" {self.n_continuation_tokens} more tokens of the text are evaluated on it, and again on the cache that"
            " comes back from an LCG3 archive. KL(original || restored) in nats over these positions, share of"
            " positions with the same most likely token, and perplexity of the text's own tokens.",
            "",
            *(f"- model: {model.name}, SHA-256 `{model.sha256}`" for model in self.models),
            *(f"- text {text.name}: {text.description}, SHA-256 `{text.sha256}`" for text in self.texts),
            *setting_lines(self.setting),
            "",
            "The column LMCache tells whether every restored value has the bits that LMCache's own encoder and decoder"
            " give, by the numpy reference. All evaluations take batches of 32 tokens, but that of the rows"
            f" `{NATIVE_OTHER_BATCHES}`: no archive, only another order of summation, which is what rounding alone does"
            " to this model.",
        ]
        for model in self.models:
            rows = [row for row in self.rows if row.model == model.name]
            prompts = ", ".join(f"{n:,}" for n in sorted({row.n_prompt_tokens for row in rows}))
            lines += ["", f"## {model.name}, {prompts} prompt tokens", ""]
            if any(row.source == "state" for row in rows):
                lines += [
                    "Pages of this model's memory are refused by this version. Its K and V were taken from llama.cpp's"
                    " own state of the sequence, and put back there: all tokens of the full-attention layers, and of"
                    " the sliding-window layers those that the window still reaches, one archive each.",
                    "",
                ]
            lines += markdown_table(
                ("text", "profile", "bits/value", "KL mean", "KL p99", "top-1", "perplexity", "original's", "LMCache"),
                [_cells(row) for row in rows],
                n_left=2,
            )
        lines += ["", "## Goals", ""]
        lines += markdown_table(
            ("goal", "reached"), [(words, "yes" if done else "**no**") for words, done in self.goals()], n_left=2
        )
        return "\n".join(lines) + "\n"


def _cells(row: QualityRow) -> tuple[str, ...]:
    d = row.divergence
    change = 100 * (d.perplexity_restored / d.perplexity_original - 1)
    return (
        row.text,
        row.profile,
        f"{row.bits_per_value:.3f}",
        f"{d.kl_mean_nats:.5f}",
        f"{d.kl_p99_nats:.4f}",
        f"{100 * d.top1_agreement:.1f} %",
        f"{d.perplexity_restored:.4f} ({change:+.2f} %)",
        f"{d.perplexity_original:.4f}",
        "" if row.equals_lmcache is None else "equal" if row.equals_lmcache else "**differs**",
    )


def evaluate_all_logits(session: Session, tokens: NDArray[np.int32], *, n_batch: int = _N_BATCH) -> NDArray[np.float32]:
    """Append tokens to a session by evaluating them, batch by batch, and keep the logits after each.

    Args:
        session: with room for them.
        tokens: token ids, shape [n].
        n_batch: tokens of a batch, at most the engine's.

    Returns:
        float32 [n, n_vocab].

    Raises:
        DecodeError: llama.cpp failed.
    """
    engine = session.engine
    n_batch = min(n_batch, engine.n_batch)
    out = np.empty((len(tokens), engine.n_vocab), dtype=np.float32)
    for begin in range(0, len(tokens), n_batch):
        chunk = tokens[begin : begin + n_batch]
        n, n_before = len(chunk), session.n_tokens
        batch = llama.llama_batch_init(n, 0, 1)
        try:
            batch.n_tokens = n
            np.ctypeslib.as_array(batch.token, (n,))[:] = chunk
            np.ctypeslib.as_array(batch.pos, (n,))[:] = np.arange(n_before, n_before + n, dtype=np.int32)
            np.ctypeslib.as_array(batch.n_seq_id, (n,))[:] = 1
            np.ctypeslib.as_array(batch.logits, (n,))[:] = 1
            for i in range(n):
                batch.seq_id[i][0] = session.seq_id
            session._logits = None
            status = int(llama.llama_decode(engine._ctx, batch))
            if status != 0:
                session._truncate(n_before)
                raise DecodeError(f"llama_decode returned {status} for positions {n_before} .. {n_before + n - 1}")
            logits = llama.llama_get_logits(engine._ctx)
            out[begin : begin + n] = np.ctypeslib.as_array(logits, (n, engine.n_vocab))
            session._tokens.extend(int(token) for token in chunk)
            session.n_evaluated += n
        finally:
            llama.llama_batch_free(batch)
    return out


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """float32 [n, n_vocab] -> float64 [n, n_vocab]."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def compare_logits(
    original: NDArray[np.float32], restored: NDArray[np.float32], targets: NDArray[np.int32]
) -> Divergence:
    """Compare the distributions of two caches, in float64.

    Args:
        original, restored: float32 [n, n_vocab].
        targets: the token that the text has after each position, [n].
    """
    n = len(targets)
    kl = np.empty(n)
    log_p_original, log_p_restored = np.empty(n), np.empty(n)
    n_same = 0
    for begin in range(0, n, _ROWS_AT_A_TIME):
        part = slice(begin, min(n, begin + _ROWS_AT_A_TIME))
        log_p, log_q = _log_softmax(original[part]), _log_softmax(restored[part])
        kl[part] = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
        n_same += int((log_p.argmax(axis=1) == log_q.argmax(axis=1)).sum())
        rows = np.arange(part.stop - part.start)
        log_p_original[part] = log_p[rows, targets[part]]
        log_p_restored[part] = log_q[rows, targets[part]]
    return Divergence(
        kl_mean_nats=float(kl.mean()),
        kl_p99_nats=float(np.percentile(kl, 99)),
        kl_max_nats=float(kl.max()),
        top1_agreement=n_same / n,
        perplexity_original=float(np.exp(-log_p_original.mean())),
        perplexity_restored=float(np.exp(-log_p_restored.mean())),
    )


def _equals_lmcache(original: CacheCopy, restored: CacheCopy) -> bool:
    """Whether the restored values have the bits that LMCache's encoder and decoder make of the original ones."""
    for planes, again in zip(original.groups, restored.groups, strict=True):
        expected = lmcache_values(planes, original.n_layers)
        for plane in again:
            rows = np.ascontiguousarray(expected[plane.layer, plane.kind]).view(np.uint8)
            if not np.array_equal(rows, native_rows(plane)):
                return False
    return True


def _measure_text(
    engine: Engine,
    text: Text,
    *,
    n_prompt: int,
    n_continuation: int,
    profiles: Sequence[str],
    progress: Callable[[str], None],
) -> list[QualityRow]:
    name = engine.model_path.name
    tokens = engine.tokenize(text.text)
    if len(tokens) <= n_prompt + n_continuation:
        raise CachegenError(
            f"text {text.name} has {len(tokens)} tokens; {n_prompt} + {n_continuation} + 1 are needed: the last one is"
            " only looked for"
        )
    continuation = tokens[n_prompt : n_prompt + n_continuation]
    targets = tokens[n_prompt + 1 : n_prompt + n_continuation + 1]
    progress(f"{name}, {text.name}: evaluating {n_prompt:,} + {n_continuation} tokens")
    with engine.session() as session:
        session.prefill(tokens[:n_prompt])
        copy = copy_cache(session)
        original = evaluate_all_logits(session, continuation)

    def row(profile: str, logits: NDArray[np.float32], n_bytes: int, equals_lmcache: bool | None = None) -> QualityRow:
        return QualityRow(
            model=name,
            text=text.name,
            profile=profile,
            source=copy.source,
            n_prompt_tokens=n_prompt,
            bits_per_value=8 * n_bytes / n_values(copy.groups),
            equals_lmcache=equals_lmcache,
            divergence=compare_logits(original, logits, targets),
        )

    def continue_from(restored: CacheCopy, n_batch: int = _N_BATCH) -> NDArray[np.float32]:
        with engine.session() as session:
            restored.restore(session)
            return evaluate_all_logits(session, continuation, n_batch=n_batch)

    rows = []
    for profile in profiles:
        progress(f"{name}, {text.name}: {profile}")
        archives = copy.encode(profile, n_threads=engine.n_threads)
        restored = copy.decode(archives, n_threads=engine.n_threads)
        is_equal = _equals_lmcache(copy, restored) if profile == "lmcache" else None
        rows.append(row(profile, continue_from(restored), sum(len(data) for data in archives), is_equal))
    progress(f"{name}, {text.name}: {NATIVE_OTHER_BATCHES}")
    rows.append(row(NATIVE_OTHER_BATCHES, continue_from(copy, _N_BATCH_OTHER), n_native_bytes(copy.groups)))
    return rows


def measure_quality(
    models: Sequence[str | os.PathLike[str]],
    texts: Sequence[Text],
    *,
    n_prompt_tokens: int = N_PROMPT_TOKENS,
    n_continuation_tokens: int = N_CONTINUATION_TOKENS,
    profiles: Sequence[str] = tuple(PROFILES),
    progress: Callable[[str], None] = lambda _: None,
) -> QualityReport:
    """Compare the model's distributions on restored caches with those on the original F16 cache.

    Args:
        models: paths of GGUF files, or names of fetched models.
        texts: at least one.
        n_prompt_tokens: tokens whose cache is restored.
        n_continuation_tokens: tokens after them, at whose positions the distributions are compared.
        profiles: names of profiles.
        progress: called with what is being done.

    Raises:
        CachegenError: a text is too short, or a model's cache can be copied in no way.
    """
    paths = [Path(resolve_model(model)) for model in models]
    rows: list[QualityRow] = []
    for path in paths:
        with Engine(path, n_ctx=n_prompt_tokens + n_continuation_tokens + 16) as engine:
            for text in texts:
                rows += _measure_text(
                    engine,
                    text,
                    n_prompt=n_prompt_tokens,
                    n_continuation=n_continuation_tokens,
                    profiles=profiles,
                    progress=progress,
                )
    return QualityReport(
        setting=Setting.here(),
        models=tuple(ModelFile.of(path) for path in paths),
        n_continuation_tokens=n_continuation_tokens,
        texts=tuple(texts),
        rows=tuple(rows),
    )
