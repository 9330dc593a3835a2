"""Sessions and stores: what comes back, part by part, and what every bad case leads to."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import store_cases
from llama_cachegen import Engine, MissReason, Outcome, Session, codec, session_store
from llama_cachegen.errors import (
    CancelledError,
    ContextError,
    NoCellsError,
    StoreQueueFullError,
    UnsupportedMemoryError,
)
from llama_cachegen.session_store import codec_stamp, identity_of
from llama_cachegen.store import CodecStamp, Store
from store_cases import flip, segment_files
from test_memory_classes import CLASSES, STATEFUL
from test_session import check_context_untouched, greedy, make_engine, untouched_runs

tmp_path = store_cases.memory_path
BLOCK = 16
PROMPT = [int(token) for token in np.random.default_rng(3).integers(0, 64, 100)]
OTHER_END = [*PROMPT[:70], *(63 - token for token in PROMPT[70:])]


def open_store(path: Path, **options: Any) -> Store:
    return Store(path, **{"block_tokens": BLOCK, "min_free_bytes": 0, **options})


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Engine]:
    with make_engine(tiny_model) as engine:
        yield engine


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "s") as store:
        yield store


def cells(session: Session, n_tokens: int | None = None) -> bytes:
    return bytes(session.export_page(0, n_tokens).payload)


def filled(engine: Engine, tokens: list[int]) -> Session:
    session = engine.session()
    session.prefill(tokens)
    return session


def save_parts(store: Store, engine: Engine, *lengths: int, profile: str = "exact") -> bytes:
    """The prompt saved as far as each length in turn. Returns its cells."""
    with engine.session() as session:
        for n in lengths:
            session.prefill(PROMPT[session.n_tokens : n])
            assert session.save_to(store, profile=profile).written
        return cells(session)


@pytest.mark.parametrize(("lengths", "n_parts"), [((100,), 1), ((48, 100), 2), ((20, 50, 64, 100), 4)])
def test_saved_and_restored_part_by_part(store: Store, engine: Engine, lengths: tuple[int, ...], n_parts: int) -> None:
    expected = save_parts(store, engine, *lengths)
    assert store.stats().n_segments == len(lengths)
    with engine.session() as session, engine.session() as reference:
        receipt = session.restore_from(store, PROMPT)
        assert receipt.outcome is Outcome.RESTORED and receipt.restored and receipt.reason is None
        assert (receipt.n_tokens, receipt.n_held, receipt.n_prompt_tokens) == (100, 100, 100)
        assert receipt.n_parts == n_parts
        assert receipt.is_exact and receipt.codec == "lcg3/1 exact, exact" and receipt.backend == "CPU"
        assert receipt.payload_bytes == len(expected) and receipt.archive_bytes > 0
        # not our own word for it: what llama.cpp holds, and what it evaluates
        assert session.pos_max == 99 and cells(session) == expected
        for n in lengths:  # in the same batches, as sums are taken in another order in others
            reference.prefill(PROMPT[reference.n_tokens : n])
        for token in (5, 6):
            n_before = session.n_evaluated
            session.prefill([token])
            reference.prefill([token])
            assert session.n_evaluated == n_before + 1
            assert np.array_equal(session.logits(), reference.logits())
        assert receipt.as_dict()["outcome"] == "restored"


def test_the_longest_prefix(store: Store, engine: Engine) -> None:
    expected = save_parts(store, engine, 100)
    with engine.session() as session:
        receipt = session.restore_from(store, OTHER_END)
        assert (receipt.outcome, receipt.reason, receipt.field) == (Outcome.PARTIAL, MissReason.TOKENS, "tokens")
        assert "token 70" in receipt.detail
        assert receipt.n_tokens == receipt.n_held == session.n_tokens == 64 and session.pos_max == 63
        with filled(engine, PROMPT[:64]) as same:
            assert cells(session) == cells(same) == cells(session, 64)
        session.prefill(OTHER_END[64:])
        saved = session.save_to(store)
        assert saved.written and saved.pos_begin == 64 and saved.n_tokens == 100
    assert expected


def test_nothing_is_written_twice(store: Store, engine: Engine) -> None:
    with filled(engine, PROMPT) as session:
        first = session.save_to(store)
        assert first.written and first.pos_begin == 0 and first.payload_bytes < first.file_bytes and first.is_exact
        n_bytes = store.counters.bytes_written
        again = session.save_to(store)
        assert not again.written and again.key == first.key and again.pos_begin == 100 and again.encode_ms == 0.0
        assert session.save_to(store, PROMPT[:48]).written is False
        assert store.counters.bytes_written == n_bytes
        part = session.save_to(store, PROMPT[:90])
        assert part.written and part.pos_begin == 80 and part.n_tokens == 90
        assert part.as_dict()["codec"] == "lcg3/1 exact, exact"
        for tokens in ([1, 2], [*PROMPT, 1]):
            with pytest.raises(ContextError, match="does not begin with"):
                session.save_to(store, tokens)
        session.clear()
        with pytest.raises(ContextError, match="empty"):
            session.save_to(store)


def test_a_session_that_has_some_of_it(store: Store, engine: Engine) -> None:
    """From any position on, in the middle of a segment too."""
    with filled(engine, PROMPT) as saved:
        saved.save_to(store, PROMPT[:48])
        saved.save_to(store)
        ends = {n: bytes(saved.export_page(n).payload) for n in (1, 20, 47, 48, 49, 99)}
    for n_have in (1, 20, 47, 48, 49, 99, 100):
        with filled(engine, PROMPT[:n_have]) as session:
            receipt = session.restore_from(store, PROMPT)
            assert receipt.outcome is Outcome.RESTORED and receipt.n_tokens == 100 - n_have and receipt.n_held == 100
            assert n_have == 100 or bytes(session.export_page(n_have).payload) == ends[n_have]
            session.prefill([1])
    with filled(engine, [1, 2, 3]) as session:
        with pytest.raises(ContextError, match="clear it"):
            session.restore_from(store, PROMPT)
        assert session.n_tokens == 3


def test_another_process_and_mode(tmp_path: Path, tiny_model: Path, engine: Engine) -> None:
    with open_store(tmp_path / "s") as store:
        expected = save_parts(store, engine, 100)
    with make_engine(tiny_model) as other, open_store(tmp_path / "s", mode="r") as store, other.session() as session:
        assert session.restore_from(store, PROMPT).restored and cells(session) == expected


# exact and lossy


def test_exact_is_never_answered_by_lossy(store: Store, engine: Engine) -> None:
    save_parts(store, engine, 100, profile="balanced")
    with engine.session() as session:
        receipt = session.restore_from(store, PROMPT)
        assert (receipt.outcome, receipt.reason) == (Outcome.MISS, MissReason.EXACTNESS)
        assert session.n_tokens == 0 and receipt.n_tokens == 0 and session.pos_max == -1
        receipt = session.restore_from(store, PROMPT, lossy=True)
        assert receipt.restored and not receipt.is_exact and "lossy" in receipt.codec
        assert session.n_exact_tokens == 0


def test_what_follows_a_lossy_restore_is_lossy(store: Store, engine: Engine, tmp_path: Path) -> None:
    """Saved losslessly it is still not what the model would have said, and no exact question gets it."""
    save_parts(store, engine, 48, profile="balanced")
    with engine.session() as session:
        assert session.restore_from(store, PROMPT, lossy=True).n_tokens == 48
        session.prefill(PROMPT[48:])
        assert session.n_exact_tokens == 0
        receipt = session.save_to(store, profile="exact")
        assert not receipt.is_exact and receipt.codec == "lcg3/1 exact, lossy"
        with engine.session() as other:
            missed = other.restore_from(store, PROMPT)
            assert (missed.outcome, missed.reason) == (Outcome.MISS, MissReason.EXACTNESS)
            assert other.restore_from(store, PROMPT, lossy=True).restored
            assert cells(other) == cells(session) and other.n_exact_tokens == 0
        session.clear()
        assert session.n_exact_tokens == 0 == session.n_tokens
        session.prefill(PROMPT)
        assert session.n_exact_tokens == 100 and session.save_to(store).is_exact


def test_lossy_files_make_a_session_lossy(engine: Engine, tiny_model: Path, tmp_path: Path, store: Store) -> None:
    with filled(engine, PROMPT) as session:
        for name in ("exact", "balanced"):
            session.save(tmp_path / name, name)
    with engine.session() as session:
        session.prefill(PROMPT[:0])
        assert session.restore(tmp_path / "exact").restored and session.n_exact_tokens == 100
        session.clear()
        assert session.restore(tmp_path / "balanced").restored and session.n_exact_tokens == 0
        assert not session.save_to(store).is_exact
        session.truncate(50)
        assert session.n_exact_tokens == 0
    with make_engine(tiny_model, type_k="q8_0", type_v="q8_0") as other, other.session() as session:
        # another type is another value, though the archive is exact
        assert session.restore(tmp_path / "exact").restored and session.n_exact_tokens == 0
        assert not session.save_to(store).is_exact


def test_exact_goes_first_and_codecs_choose(store: Store, engine: Engine) -> None:
    save_parts(store, engine, 100, profile="balanced")
    save_parts(store, engine, 100, profile="fine")
    save_parts(store, engine, 100)
    fine = codec_stamp(codec.FINE, True)
    with engine.session() as session:
        assert session.restore_from(store, PROMPT, lossy=True).codec == "lcg3/1 exact, exact"
        session.clear()
        assert session.restore_from(store, PROMPT, lossy=True, codecs=[fine]).codec == "lcg3/1 fine, lossy"
        session.clear()
        receipt = session.restore_from(store, PROMPT, codecs=[fine])
        assert receipt.outcome is Outcome.MISS


def test_a_profiles_numbers_are_in_the_key() -> None:
    """Two profiles of one name that quantise otherwise are two codecs; lossless ones are one."""
    other = dataclasses.replace(codec.BALANCED, n_exact_tokens=8)
    assert codec_stamp(other, True).calibration != codec_stamp(codec.BALANCED, True).calibration != ""
    blocks = dataclasses.replace(codec.EXACT, block_tokens=32)
    assert codec_stamp(blocks, True) == codec_stamp(codec.EXACT, True) != codec_stamp(codec.EXACT, False)
    assert codec_stamp(codec.BALANCED, True) == codec_stamp(codec.BALANCED, False)


# misses


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"type_k": "q8_0"}, MissReason.TYPE),
        ({"flash_attn": False}, MissReason.LAYOUT),
        ({"namespace": "other"}, MissReason.NAMESPACE),
        ({"rope_freq_base": 5e5}, MissReason.ROPE),
    ],
)
def test_another_context_is_a_miss(
    store: Store, engine: Engine, tiny_model: Path, changes: dict[str, Any], reason: MissReason
) -> None:
    save_parts(store, engine, 100)
    with make_engine(tiny_model, **changes) as other, other.session() as session:
        receipt = session.restore_from(store, PROMPT)
        assert (receipt.outcome, receipt.reason) == (Outcome.MISS, reason), receipt.detail
        assert receipt.detail and session.n_tokens == 0 and receipt.codec == "" and receipt.n_parts == 0


def test_other_weights_and_an_empty_store(store: Store, engine: Engine, other_model: Path) -> None:
    with engine.session() as session:
        receipt = session.restore_from(store, PROMPT)
        assert (receipt.outcome, receipt.reason) == (Outcome.MISS, MissReason.ABSENT)
    save_parts(store, engine, 100)
    with make_engine(other_model) as other, other.session() as session:
        assert session.restore_from(store, PROMPT).reason is MissReason.MODEL


def test_a_rotation_switched_off_is_a_miss(
    tmp_path: Path, store: Store, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_engine(tiny_model, type_k="q8_0", type_v="q8_0") as engine:
        assert {group.n_rot for group in identity_of(engine).components} == {64}
        save_parts(store, engine, 100)
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    with make_engine(tiny_model, type_k="q8_0", type_v="q8_0") as engine, engine.session() as session:
        receipt = session.restore_from(store, PROMPT)
        assert (receipt.outcome, receipt.reason) == (Outcome.MISS, MissReason.ROTATION)


def test_payloads_that_are_no_archives(store: Store, engine: Engine) -> None:
    with filled(engine, PROMPT) as session:
        page = session.export_page()
        path = Path(store.path, "tmp", "x")
        page.write(path)
        store.save(
            identity_of(engine), CodecStamp(name="native"), PROMPT, path.read_bytes(), payload_format="page",
            decoded_bytes=page.payload_bytes, component_types={"K": "f16", "V": "f16"},
        )  # fmt: skip
        session.clear()
        receipt = session.restore_from(store, PROMPT)
        assert (receipt.outcome, receipt.reason, receipt.field) == (
            Outcome.MISS, MissReason.CODEC, "payload_format",
        )  # fmt: skip


# damage


def payload_offsets(path: Path, store: Store) -> range:
    prefix = store.describe(path.stem)
    return range(prefix.plan.payload_offset, prefix.plan.file_bytes)


def test_damage_is_a_miss_and_put_aside(tmp_path: Path, engine: Engine, tiny_model: Path) -> None:
    """Bytes all over the archive, without the store's own digest: never restored, and the context as it was."""
    path = tmp_path / "s"
    with open_store(path) as store:
        save_parts(store, engine, 100)
        (file,) = segment_files(path)
        offsets = payload_offsets(file, store)
    whole = file.read_bytes()
    tried = [*offsets[:200], *offsets[200 :: len(offsets) // 150], offsets[-1]]

    def attempts(session: Session) -> None:
        for offset in tried:
            file.write_bytes(whole)
            flip(file, offset)
            with open_store(path) as store:
                receipt = session.restore_from(store, PROMPT)
                assert (receipt.outcome, receipt.reason) == (Outcome.MISS, MissReason.DAMAGED), (offset, receipt)
                assert not file.exists() and store.counters.n_quarantined == 1
                assert session.n_tokens == 0 and session.pos_max == -1
                # not tried again
                assert session.restore_from(store, PROMPT).reason is MissReason.DAMAGED
                assert store.counters.n_quarantined == 1
            for left in (path / "quarantine").iterdir():
                left.unlink()

    check_context_untouched(tiny_model, untouched_runs(tiny_model), attempts)
    assert len(tried) > 300


def test_a_damaged_second_part_gives_the_first(tmp_path: Path, engine: Engine) -> None:
    with open_store(tmp_path / "s") as store:
        save_parts(store, engine, 48, 100)
        key = store.lookup(identity_of(engine), PROMPT).keys[1]
        flip(tmp_path / "s" / "segments" / key[:2] / f"{key}.seg", payload_offsets(Path(f"{key}.seg"), store)[5000])
        with engine.session() as session:
            receipt = session.restore_from(store, PROMPT)
            assert (receipt.outcome, receipt.reason) == (Outcome.PARTIAL, MissReason.DAMAGED)
            assert receipt.n_tokens == 48 and session.pos_max == 47 and receipt.n_parts == 1
            session.prefill(PROMPT[48:])
            assert session.save_to(store).pos_begin == 48
            session.clear()
            assert session.restore_from(store, PROMPT).restored


def test_a_keyed_store_compares_its_own_digest(tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything of it is decoded: who can write there can make an archive sound again, not its keyed digest."""
    with open_store(tmp_path / "s", key=b"k" * 32) as store:
        expected = save_parts(store, engine, 100)
        with engine.session() as session:
            assert session.restore_from(store, PROMPT).restored and cells(session) == expected
        (file,) = segment_files(tmp_path / "s")
        flip(file, payload_offsets(file, store)[-1])
        monkeypatch.setattr(session_store, "decode_range", None)
        with engine.session() as session:
            receipt = session.restore_from(store, PROMPT)
            assert (receipt.outcome, receipt.reason) == (Outcome.MISS, MissReason.DAMAGED)
            assert "digest" in receipt.detail


@pytest.mark.parametrize("key", [None, b"k" * 32], ids=["plain", "keyed"])
def test_the_payload_of_another_segment(tmp_path: Path, engine: Engine, key: bytes | None) -> None:
    """A sound archive of as many tokens and bytes under the header of this one: decodes, and is not what was saved."""
    with open_store(tmp_path / "s", key=key) as store:
        lengths = []
        for seed in range(40):
            with filled(engine, np.random.default_rng(seed).integers(0, 64, 32).tolist()) as session:
                saved = session.save_to(store, profile=codec.EXACT)
                lengths.append((saved.payload_bytes, session.tokens.tolist(), saved.key))
        lengths.sort()
        (_, tokens, one), (_, _, two) = next((a, b) for a, b in itertools.pairwise(lengths) if a[0] == b[0])
        files = {file.stem: file for file in segment_files(tmp_path / "s")}
        begin = payload_offsets(files[one], store)[0]
        files[one].write_bytes(files[one].read_bytes()[:begin] + files[two].read_bytes()[begin:])
        with engine.session() as session:
            receipt = session.restore_from(store, tokens)
            assert (receipt.outcome, receipt.reason) == (Outcome.MISS, MissReason.DAMAGED)
            assert "digest" in receipt.detail and session.n_tokens == 0 and session.pos_max == -1
            assert not files[one].exists()


def test_bytes_that_are_no_sound_archive(store: Store, engine: Engine) -> None:
    """Saved like that: named, kept, and nothing restored."""
    store.save(
        identity_of(engine), codec_stamp(codec.EXACT, True), PROMPT, b"LCG3" + bytes(500), payload_format="lcg3",
        decoded_bytes=1000, component_types={"K": "f16", "V": "f16"},
    )  # fmt: skip
    with engine.session() as session:
        receipt = session.restore_from(store, PROMPT)
        assert (receipt.outcome, receipt.reason) == (Outcome.MISS, MissReason.UNREADABLE)
        assert "as it was saved" in receipt.detail and store.counters.n_quarantined == 0


def test_an_error_takes_all_back(store: Store, engine: Engine, tiny_model: Path) -> None:
    """The second part finds no cells: the first one goes too. A miss would keep it."""
    save_parts(store, engine, 48, 100)
    with make_engine(tiny_model, n_ctx=128, n_seq_max=2, kv_unified=True) as small, small.session() as session:
        with filled(small, [1] * 180), pytest.raises(NoCellsError):
            session.restore_from(store, PROMPT)
        assert session.n_tokens == 0 and session.pos_max == -1
        assert session.restore_from(store, PROMPT).restored
    cancel = threading.Event()
    cancel.set()
    with filled(engine, PROMPT[:7]) as session:
        with pytest.raises(CancelledError):
            session.restore_from(store, PROMPT, cancel=cancel)
        assert session.n_tokens == 7 and session.pos_max == 6


# later


def test_saved_while_decoding_goes_on(store: Store, engine: Engine) -> None:
    """The entry is the sequence as it was when it was given, in the order given."""
    with engine.session() as session:
        session.prefill(PROMPT[:48])
        first = session.save_to_later(store)
        session.prefill(PROMPT[48:80])
        second = session.save_to_later(store)
        session.prefill(PROMPT[80:])
        third = session.save_to_later(store, when_full="wait")
        session.truncate(30)
        session.prefill([1] * 20)
        results = [future.result(30) for future in (first, second, third)]
        assert all(result.written for result in results) and store.stats().n_segments == 3
        session.clear()
        for begin, end in ((0, 48), (48, 80), (80, 100)):
            session.prefill(PROMPT[begin:end])
        assert not session.save_to_later(store).result(30).written
        expected = cells(session)
        session.clear()
        assert session.restore_from(store, PROMPT).n_parts == 3
        assert cells(session) == expected


def test_a_full_queue_refuses(tmp_path: Path, engine: Engine) -> None:
    with open_store(tmp_path / "s", queue_bytes=100) as store, filled(engine, PROMPT) as session:
        with pytest.raises(StoreQueueFullError):
            session.save_to_later(store)
        assert session.n_tokens == 100 and session.save_to(store).written


# other memories


@pytest.mark.parametrize("architecture", CLASSES)
def test_every_memory(dummy_model: Any, tmp_path: Path, architecture: str) -> None:
    """Two parts, the second one saved after the first was restored; then all of it goes on as if never saved."""
    tokens = np.random.default_rng(5).integers(0, 100, 150).tolist()
    arguments: dict[str, Any] = {"n_seq_max": 2, "n_batch": 64, "n_ubatch": 64, "n_threads": 1, "n_ctx": 256}
    with Engine(dummy_model(architecture), **arguments) as engine, open_store(tmp_path / "s") as store:
        divisible = CLASSES[architecture] not in STATEFUL and "swa" not in CLASSES[architecture]
        with filled(engine, tokens[:96]) as session:
            assert session.save_to(store).written
            session.prefill(tokens[96:])
            second = session.save_to(store)
            assert second.written and second.pos_begin == 96
            assert store.describe(second.key).divisible == divisible
        with filled(engine, tokens[:96]) as reference, engine.session() as session:
            reference.prefill(tokens[96:])
            receipt = session.restore_from(store, [*tokens, 7])
            assert (receipt.outcome, receipt.n_tokens, receipt.n_parts) == (Outcome.PARTIAL, 150, 2), receipt
            assert session.pos_max == 149
            for token in (7, 8):
                session.prefill([token])
                reference.prefill([token])
                assert np.array_equal(session.logits(), reference.logits())
        with engine.session() as session:
            receipt = session.restore_from(store, [*tokens[:120], 1, 2, 3])
            assert receipt.n_tokens == (112 if divisible else 96), receipt
            assert receipt.reason is MissReason.TOKENS and session.pos_max == receipt.n_tokens - 1


def test_a_memory_that_cannot_be_kept(dummy_model: Any, store: Store) -> None:
    with Engine(dummy_model("deepseek4 (MoE)"), n_ctx=512, n_threads=1) as engine, engine.session() as session:
        session.prefill([1, 2, 3])
        with pytest.raises(UnsupportedMemoryError, match="DeepSeek V4"):
            session.save_to(store)
        with pytest.raises(UnsupportedMemoryError, match="DeepSeek V4"):
            session.restore_from(store, [1, 2, 3])


def test_greedy_text_is_the_same(store: Store, engine: Engine) -> None:
    with filled(engine, PROMPT) as reference, engine.session() as session:
        reference.save_to(store)
        assert session.restore_from(store, [*PROMPT, 9]).n_tokens == 100
        for one in (reference, session):
            one.prefill([9])
        assert greedy(session) == greedy(reference)
