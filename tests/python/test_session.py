"""Sessions: what a restore gives, and that a page that cannot be restored leaves everything as it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from conftest import write_tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cachegen import Engine, MissReason, Outcome, Page, PageMismatchError, Session, errors, llama_state
from llama_cachegen.page import size_of

PROMPT = [int(t) for t in np.random.default_rng(7).integers(0, 64, 50)]
LIVE = [int(t) for t in np.random.default_rng(8).integers(0, 64, 20)]
N_GREEDY = 16


def make_engine(model: Path, **options: Any) -> Engine:
    return Engine(model, **{"n_ctx": 256, "n_seq_max": 3, "n_threads": 2, **options})


def greedy(session: Session) -> tuple[list[int], list[bytes]]:
    """A greedy run with the logits of every step."""
    tokens, logits = [], []
    for token in session.generate(N_GREEDY, stop=False):
        tokens.append(token)
        logits.append(session.logits().tobytes())
    return tokens, logits


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Engine]:
    with make_engine(tiny_model) as engine:
        yield engine


@pytest.fixture(scope="module")
def page_path(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "prompt.page"
    with make_engine(tiny_model) as engine, engine.session() as session:
        session.prefill(PROMPT)
        session.save(path)
    return path


def untouched_runs(model: Path, **options: Any) -> tuple[Any, Any]:
    """Greedy runs of a context that never saw a page: of the live sequence, then of the prompt beside it."""
    with make_engine(model, **options) as engine:
        live, fresh = engine.session(), engine.session()
        live.prefill(LIVE)
        live_run = greedy(live)
        fresh.prefill(PROMPT)
        return live_run, greedy(fresh)


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> tuple[Any, Any]:
    return untouched_runs(tiny_model)


def check_context_untouched(model: Path, reference: Any, attempt: Callable[[Session], None], **options: Any) -> None:
    """Try something that must fail beside a live sequence, in an empty session and in one that holds tokens."""
    with make_engine(model, **options) as engine:
        live, fresh = engine.session(), engine.session()
        live.prefill(LIVE)
        n_evaluated = live.n_evaluated
        attempt(fresh)
        assert fresh.n_tokens == 0 and fresh.pos_max == -1
        assert live.tokens.tolist() == LIVE and live.pos_max == len(LIVE) - 1 and live.n_evaluated == n_evaluated
        assert greedy(live) == reference[0]
        fresh.prefill(PROMPT)
        assert greedy(fresh) == reference[1]


# what a restore gives


@pytest.mark.parametrize("flash_attn", [True, False], ids=["rows", "transposed"])
@pytest.mark.parametrize("kv_unified", [True, False], ids=["one_pool", "pool_each"])
def test_restore_continues_like_the_original(
    tiny_model: Path, tmp_path: Path, flash_attn: bool, kv_unified: bool
) -> None:
    options = {"flash_attn": flash_attn, "kv_unified": kv_unified}
    path = tmp_path / "prompt.page"
    with make_engine(tiny_model, **options) as engine:
        # in the same cells as below: in one pool the order of a sum depends on them
        engine.session().prefill(LIVE)
        session = engine.session()
        session.prefill(PROMPT[:-1])
        saved = session.save(path)
        session.prefill(PROMPT[-1:])
        expected = greedy(session)
    assert saved.file_bytes == path.stat().st_size
    assert saved.component_types == {"K": "f16", "V": "f16"}

    with make_engine(tiny_model, **options) as engine:
        other = engine.session()
        other.prefill(LIVE)
        session = engine.session(seq_id=2)
        receipt = session.restore(path, PROMPT)
        assert receipt.restored and receipt.outcome is Outcome.RESTORED and receipt.reason is None
        assert receipt.n_tokens == len(PROMPT) - 1 and receipt.payload_bytes == saved.payload_bytes
        # what llama.cpp holds, not what we say: the positions are there, and only the rest is evaluated
        assert session.pos_max == len(PROMPT) - 2
        assert session.n_evaluated == 0
        session.prefill(PROMPT[receipt.n_tokens :])
        assert session.n_evaluated == 1
        assert greedy(session) == expected


def test_restoring_the_whole_prompt_evaluates_one_token(engine: Engine, page_path: Path) -> None:
    with engine.session() as session:
        receipt = session.restore(page_path, PROMPT)
        assert receipt.restored and session.pos_max == len(PROMPT) - 1
        _, timing = session.first_token()
        assert timing.n_evaluated == 1 and session.n_evaluated == 1
        assert session.pos_max == len(PROMPT) - 1 and session.tokens.tolist() == PROMPT
        _, timing = session.first_token()
        assert timing.n_evaluated == 0


def test_pages_append_in_order(engine: Engine) -> None:
    with engine.session() as source, engine.session() as target:
        source.prefill(PROMPT)
        first, second = source.export_page(0, 20), source.export_page(20, None)
        with pytest.raises(errors.PageRangeError, match=r"ends before position 0.*begins at 20"):
            target.import_page(second)
        target.import_page(first)
        target.import_page(second)
        assert target.tokens.tolist() == PROMPT and target.pos_max == len(PROMPT) - 1
        assert bytes(target.export_page().payload) == bytes(source.export_page().payload)


def test_one_token_page(engine: Engine, tmp_path: Path) -> None:
    with engine.session() as source, engine.session() as target:
        source.prefill(PROMPT[:1])
        source.save(tmp_path / "one.page")
        assert target.restore(tmp_path / "one.page").n_tokens == 1
        assert target.pos_max == 0
        np.testing.assert_array_equal(target.logits(), source.logits())


def test_empty_sequence_cannot_be_saved(engine: Engine, tmp_path: Path) -> None:
    with engine.session() as session:
        with pytest.raises(errors.ContextError, match="not a range of the 0 tokens"):
            session.save(tmp_path / "empty.page")
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(errors.ContextError, match="empty sequence"):
            session.first_token()


def test_f32_is_not_unset(tiny_model: Path) -> None:
    sizes = {}
    for name in ("f16", "f32"):
        with make_engine(tiny_model, type_k=name, type_v=name) as engine, engine.session() as session:
            session.prefill(PROMPT)
            page = session.export_page()
            assert {c.type_name for c in page.components} == {name}
            sizes[name] = sum(c.n_bytes for c in page.components)
    assert sizes["f32"] == 2 * sizes["f16"]


def test_numpy_views_share_the_pages_memory(engine: Engine, page_path: Path) -> None:
    with engine.session() as session:
        session.prefill(PROMPT)
        page = session.export_page()
    whole = np.frombuffer(page.payload, dtype=np.uint8)
    for i, component in enumerate(page.components):
        view = page.numpy(i)
        assert view.shape == (len(PROMPT), component.n_channels) and view.dtype == np.float16
        assert np.shares_memory(view, whole) and not view.flags.writeable
    with Page.open(page_path) as mapped:
        assert np.shares_memory(mapped.numpy(0), np.frombuffer(mapped.payload, dtype=np.uint8))
        np.testing.assert_array_equal(mapped.numpy(0), page.numpy(0))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_size_of_a_page_is_the_size_of_its_file(engine: Engine, tmp_path_factory: Any, data: st.DataObject) -> None:
    n_tokens = data.draw(st.integers(1, 60))
    p0 = data.draw(st.integers(0, n_tokens - 1))
    p1 = data.draw(st.integers(p0 + 1, n_tokens))
    with engine.session() as session:
        session.prefill((PROMPT * 2)[:n_tokens])
        page = session.export_page(p0, p1)
    path = tmp_path_factory.mktemp("size") / "a.page"
    page.write(path)
    assert path.stat().st_size == size_of(page)
    with Page.open(path, verify=True) as again:
        assert again.n_tokens == p1 - p0 and again.pos_begin == p0
        assert bytes(again.payload) == bytes(page.payload)


def test_progress_and_its_exception(engine: Engine) -> None:
    seen: list[tuple[int, int]] = []

    class Stop(Exception):
        pass

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        if done:
            raise Stop

    with engine.session() as session:
        with pytest.raises(Stop):
            session.prefill(PROMPT, progress=progress)
        assert seen == [(0, len(PROMPT)), (len(PROMPT), len(PROMPT))]
        assert session.n_tokens == session.pos_max + 1 == len(PROMPT)


def test_llama_state_round_trip(engine: Engine, tmp_path: Path) -> None:
    with engine.session() as source, engine.session() as target:
        source.prefill(PROMPT)
        llama_state.save_file(source, tmp_path / "state")
        llama_state.load_file(target, tmp_path / "state")
        assert target.tokens.tolist() == PROMPT
        assert target.first_token()[0] == source.first_token()[0]


# damaged files: an error, and nothing changed


def sections(path: Path) -> dict[str, int]:
    """Named offsets of a page file, found through the page itself."""
    with Page.open(path) as page:
        payload = path.stat().st_size - page.payload_bytes
        first, last = page.components[0], page.components[-1]
        assert first.kind.name == "K" and last.kind.name == "V"
        return {
            "magic": 0,
            "version": 8,
            "sizes": 24,
            "digest": 191,
            "identity": 192,
            "before_payload": payload - 1,
            "k_of_first_layer": payload + first.offset,
            "second_component": payload + page.components[1].offset,
            "v_of_last_layer": payload + last.offset + last.n_bytes - 1,
        }


REGIONS = (
    "magic",
    "version",
    "sizes",
    "digest",
    "identity",
    "before_payload",
    "k_of_first_layer",
    "second_component",
    "v_of_last_layer",
)


@pytest.mark.parametrize("region", REGIONS)
def test_flipped_byte(tiny_model: Path, reference: Any, page_path: Path, tmp_path: Path, region: str) -> None:
    offset = sections(page_path)[region]
    data = bytearray(page_path.read_bytes())
    data[offset] ^= 0x40
    damaged = tmp_path / "damaged.page"
    damaged.write_bytes(data)

    def attempt(session: Session) -> None:
        with pytest.raises((errors.PageFileError, errors.PageDigestError)) as caught:
            session.restore(damaged)
        assert len(str(caught.value)) > 20
        if offset >= sections(page_path)["k_of_first_layer"]:
            assert isinstance(caught.value, errors.PageDigestError)

    check_context_untouched(tiny_model, reference, attempt)


def test_truncated_at_every_section_edge(tiny_model: Path, reference: Any, page_path: Path, tmp_path: Path) -> None:
    data = page_path.read_bytes()
    edges = {0, 1, 8, 191, 192, 193, len(data) - 1}
    for offset in sections(page_path).values():
        edges |= {max(0, offset - 1), offset, offset + 1}
    edges.discard(len(data))

    def attempt(session: Session) -> None:
        for n_bytes in sorted(edges):
            path = tmp_path / f"{n_bytes}.page"
            path.write_bytes(data[:n_bytes])
            with pytest.raises(errors.PageFileError) as caught:
                session.restore(path)
            assert isinstance(caught.value, errors.PageFileTruncatedError), n_bytes
        longer = tmp_path / "longer.page"
        longer.write_bytes(data + b"\0")
        with pytest.raises(errors.PageFileTruncatedError):
            session.restore(longer)

    check_context_untouched(tiny_model, reference, attempt)


def test_paths_that_are_no_page_files(tiny_model: Path, reference: Any, tmp_path: Path) -> None:
    text = tmp_path / "text.page"
    text.write_text("This is not a page file, but it is longer than the header of one. " * 10)
    os.mkfifo(tmp_path / "fifo")
    cases: list[tuple[Path, type[Exception]]] = [
        (tmp_path / "missing.page", errors.PageFileMissingError),
        (tmp_path / "missing.page", FileNotFoundError),
        (tmp_path, errors.PageFileNotRegularError),
        (tmp_path / "fifo", errors.PageFileNotRegularError),
        (Path("/dev/null"), errors.PageFileNotRegularError),
        (text, errors.PageFileCorruptError),
    ]

    def attempt(session: Session) -> None:
        for path, expected in cases:
            with pytest.raises(expected, match=str(path)):
                session.restore(path)

    check_context_untouched(tiny_model, reference, attempt)


# sound pages that do not belong here: a miss that says what differs


def check_miss(
    model: Path, reference: Any, path: Path, reason: MissReason, *words: str, tokens: Any = None, **options: Any
) -> None:
    def attempt(session: Session) -> None:
        receipt = session.restore(path, tokens)
        assert receipt.outcome is Outcome.MISS and not receipt.restored
        assert receipt.reason is reason and receipt.n_tokens == 0
        for word in words:
            assert word in receipt.detail
        if tokens is None:
            with Page.open(path) as page, pytest.raises(PageMismatchError, match=f"miss: {reason.value}"):
                session.import_page(page)

    check_context_untouched(model, reference, attempt, **options)


def save_page(model: Path, path: Path, **options: Any) -> Path:
    with make_engine(model, **options) as engine, engine.session() as session:
        session.prefill(PROMPT)
        session.save(path)
    return path


def test_miss_model(tiny_model: Path, other_model: Path, reference: Any, tmp_path: Path) -> None:
    page = save_page(other_model, tmp_path / "a.page")
    check_miss(tiny_model, reference, page, MissReason.MODEL, "other.gguf", "tiny.gguf")


@pytest.mark.parametrize(
    ("saved", "opened", "words"),
    [
        ({"type_k": "q8_0"}, {}, ("q8_0", "f16", "layer 0 K")),
        ({}, {"type_v": "q8_0"}, ("f16", "q8_0", "layer 0 V")),
        ({"type_k": "f32", "type_v": "f32"}, {}, ("f32", "f16")),
        # rows of the same size
        ({"type_k": "q4_0"}, {"type_k": "iq4_nl"}, ("q4_0", "iq4_nl")),
        ({"type_v": "bf16"}, {"type_v": "f16"}, ("bf16", "f16")),
    ],
)
def test_miss_type(tiny_model: Path, tmp_path: Path, saved: Any, opened: Any, words: tuple[str, ...]) -> None:
    page = save_page(tiny_model, tmp_path / "a.page", **saved)
    check_miss(tiny_model, untouched_runs(tiny_model, **opened), page, MissReason.TYPE, *words, **opened)


def test_miss_layout(tiny_model: Path, tmp_path: Path) -> None:
    for flash_attn in (True, False):
        page = save_page(tiny_model, tmp_path / f"{flash_attn}.page", flash_attn=flash_attn)
        opened = {"flash_attn": not flash_attn}
        reference = untouched_runs(tiny_model, **opened)
        check_miss(tiny_model, reference, page, MissReason.LAYOUT, "transposed", "rows", **opened)


@pytest.mark.parametrize("options", [{"type_k": "q8_0"}, {"type_v": "q8_0"}, {"type_k": "q4_0", "type_v": "q4_0"}])
def test_miss_rotation(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
    rotated = save_page(tiny_model, tmp_path / "rotated.page", **options)
    with Page.open(rotated) as page:
        assert {c.kind.name: c.n_rot for c in page.components} == {
            "K": 64 if "type_k" in options else 0,
            "V": 64 if "type_v" in options else 0,
        }
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    reference = untouched_runs(tiny_model, **options)
    check_miss(tiny_model, reference, rotated, MissReason.ROTATION, "by 64", "by 0", **options)
    plain = save_page(tiny_model, tmp_path / "plain.page", **options)
    monkeypatch.delenv("LLAMA_ATTN_ROT_DISABLE")
    reference = untouched_runs(tiny_model, **options)
    check_miss(tiny_model, reference, plain, MissReason.ROTATION, "by 0", "by 64", **options)


def test_miss_rope(tiny_model: Path, tmp_path: Path, reference: Any) -> None:
    page = save_page(tiny_model, tmp_path / "a.page", rope_freq_base=5000.0)
    check_miss(tiny_model, reference, page, MissReason.ROPE, "freq_base", "5000", "10000")


def test_miss_namespace(tiny_model: Path, tmp_path: Path, reference: Any) -> None:
    page = save_page(tiny_model, tmp_path / "a.page", namespace="tenant-a")
    check_miss(tiny_model, reference, page, MissReason.NAMESPACE, "tenant-a")


def test_miss_tokens(tiny_model: Path, page_path: Path, reference: Any) -> None:
    other = [*PROMPT[:10], (PROMPT[10] + 1) % 64, *PROMPT[11:]]
    check_miss(tiny_model, reference, page_path, MissReason.TOKENS, "token 10", tokens=other)
    check_miss(tiny_model, reference, page_path, MissReason.TOKENS, "50", "49", tokens=PROMPT[:-1])


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("abi_version", 0, MissReason.ABI),
        ("llama_commit", "0" * 40, MissReason.LLAMA_COMMIT),
        ("patch_digest", "0" * 64, MissReason.PATCH_DIGEST),
        ("endianness", "big", MissReason.ENDIANNESS),
    ],
)
def test_miss_other_library(
    tiny_model: Path, page_path: Path, tmp_path: Path, reference: Any, field: str, value: Any, reason: MissReason
) -> None:
    older = tmp_path / "older.page"
    with Page.open(page_path) as page:
        identity = msgspec.structs.replace(page.identity, **{field: value})
        Page(
            identity=identity,
            pos_begin=page.pos_begin,
            tokens=page.tokens,
            components=page.components,
            payload=page.payload,
        ).write(older)
    check_miss(tiny_model, reference, older, reason, field)


# no room, or the wrong place


def test_context_too_small(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.page"
    with make_engine(tiny_model, n_ctx=1024, n_seq_max=1) as engine, engine.session() as session:
        session.prefill((PROMPT * 20)[:600])
        session.save(path)

    def attempt(session: Session) -> None:
        with pytest.raises(errors.NoCellsError, match=r"600 tokens do not fit.*256 cells.*raise n_ctx"):
            session.restore(path)

    check_context_untouched(tiny_model, untouched_runs(tiny_model), attempt)


def test_no_free_cells_beside_others(tiny_model: Path, page_path: Path) -> None:
    with make_engine(tiny_model, n_ctx=128, n_seq_max=2, kv_unified=True) as engine:
        live, fresh = engine.session(), engine.session()
        live.prefill((PROMPT * 5)[:220])
        expected = bytes(live.export_page().payload)
        with pytest.raises(errors.NoCellsError, match="220 of 256 cells are in use"):
            fresh.restore(page_path)
        assert fresh.pos_max == -1 and live.pos_max == 219
        assert bytes(live.export_page().payload) == expected
        live.close()
        assert fresh.restore(page_path).restored


def test_occupied_range(tiny_model: Path, page_path: Path, reference: Any) -> None:
    with make_engine(tiny_model) as engine:
        live, fresh = engine.session(), engine.session()
        live.prefill(LIVE)
        with pytest.raises(errors.PageRangeError, match=r"already holds positions up to 19.*begins at 0"):
            live.restore(page_path)
        assert live.tokens.tolist() == LIVE and live.pos_max == len(LIVE) - 1
        assert greedy(live) == reference[0]
        fresh.prefill(PROMPT)
        assert greedy(fresh) == reference[1]


# engines and sessions


def test_context_refusals_are_clean(tmp_path: Path, tiny_model: Path) -> None:
    odd = write_tiny_model(tmp_path / "odd.gguf", head_size=80)
    for flash_attn in (True, False):
        with pytest.raises(errors.ContextError, match=r"K q8_0.*block size 32"):
            make_engine(odd, type_k="q8_0", flash_attn=flash_attn)
    with pytest.raises(errors.ContextError, match=r"V q8_0, flash attention off"):
        make_engine(tiny_model, type_v="q8_0", flash_attn=False)
    with pytest.raises(errors.ContextError, match="q9_9"):
        make_engine(tiny_model, type_k="q9_9")
    with pytest.raises(errors.ContextError, match="n_ctx is 0"):
        make_engine(tiny_model, n_ctx=0)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(errors.ContextError, match=r"broken\.gguf could not be loaded"):
        make_engine(broken)
    with make_engine(odd) as engine, engine.session() as session:
        session.prefill(PROMPT)
        assert session.export_page().n_tokens == len(PROMPT)


def test_bad_tokens(engine: Engine) -> None:
    with engine.session() as session:
        for tokens, words in (
            ([64], "0 .. 63"),
            ([-1], "0 .. 63"),
            ([[1, 2]], "one row"),
            ([1.5], "integers"),
            ([1] * 300, "do not fit"),
        ):
            with pytest.raises(errors.ContextError, match=words):
                session.prefill(tokens)  # type: ignore[arg-type]
            assert session.n_tokens == 0 and session.pos_max == -1


def test_session_ids(tiny_model: Path) -> None:
    with make_engine(tiny_model, n_seq_max=2) as engine:
        a, b = engine.session(), engine.session()
        assert (a.seq_id, b.seq_id) == (0, 1)
        with pytest.raises(errors.ContextError, match="all 2 sequence ids"):
            engine.session()
        a.prefill(PROMPT)
        a.close()
        with pytest.raises(errors.ContextError, match="closed"):
            a.export_page()
        again = engine.session()
        assert again.seq_id == 0 and again.pos_max == -1
        with pytest.raises(errors.ContextError, match="in use"):
            engine.session(seq_id=1)
    with pytest.raises(errors.ContextError, match="closed"):
        again.prefill(PROMPT)
    engine.close()


def test_capabilities(engine: Engine) -> None:
    caps = engine.capabilities()
    assert caps.supported and caps.status_name == "OK" and caps.reason == ""
    assert caps.n_components == 4 and caps.n_streams == 3 and caps.n_cells == 256
    assert caps.bytes_per_token == 4 * 64 * 2 and not caps.v_transposed
