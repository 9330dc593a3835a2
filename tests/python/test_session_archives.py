"""Sessions and archives: what a restore gives for every profile and type; failures leave everything as it was."""

from __future__ import annotations

import dataclasses
import errno
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from codec_cases import load, random_planes
from conftest import write_tiny_model
from llama_cachegen import Engine, MissReason, Outcome, Page, Session, _binding, codec, errors, session_archives
from llama_cachegen._archive_calls import import_options
from llama_cachegen.archive_file import ArchiveFile, write_archive_file
from llama_cachegen.codec import Archive, decode_page, page_planes
from llama_cachegen.errors import ModelFetchError
from llama_cachegen.ggml_types import GgmlType
from llama_cachegen.models import resolve_model
from llama_cachegen.page_file import ComponentKind, PageComponent
from numpy.typing import NDArray
from test_session import LIVE, PROMPT, check_context_untouched, greedy, make_engine, untouched_runs

LONG = [int(t) for t in np.random.default_rng(9).integers(0, 64, 200)]
BLOCKS = dataclasses.replace(codec.EXACT, name="exact-32", block_tokens=32)
LOSSY_BLOCKS = dataclasses.replace(codec.BALANCED, name="balanced-32", block_tokens=32)
NAMES = list(codec.PROFILES)
# relative RMS error of the tiny model's values, which are as good as random; measured 0, 0.039, 0.092, 0.051
PROFILE_BOUNDS = {"exact": 1e-9, "fine": 0.046, "balanced": 0.11, "lmcache": 0.06}
CODED_TYPES = ["f32", "f16", "bf16", "q8_0", "q4_0"]


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Engine]:
    with make_engine(tiny_model) as engine:
        yield engine


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> tuple[Any, Any]:
    return untouched_runs(tiny_model)


@pytest.fixture(scope="module")
def saved(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The prompt under every profile, a long one in blocks of 32 tokens, and its cells."""
    folder = tmp_path_factory.mktemp("archives")
    paths = {name: folder / name for name in [*NAMES, "page", "blocks", "lossy_blocks", "long_page"]}
    with make_engine(tiny_model) as engine, engine.session() as session, engine.session() as long:
        session.prefill(PROMPT)
        long.prefill(LONG)
        for name in NAMES:
            session.save(paths[name], name)
        session.save(paths["page"])
        long.save(paths["blocks"], BLOCKS)
        long.save(paths["lossy_blocks"], LOSSY_BLOCKS)
        long.save(paths["long_page"])
    return paths


def cells(session: Session, n_tokens: int | None = None) -> bytes:
    return bytes(session.export_page(0, n_tokens).payload)


def rewrite(source: Path, target: Path, *, archive: bytes | None = None, **changes: Any) -> Path:
    """A sound file with other content."""
    with ArchiveFile(source) as file:
        arguments = {
            "identity": file.identity,
            "pos_begin": file.pos_begin,
            "tokens": file.tokens,
            "is_exact": file.is_exact,
            **changes,
        }
        write_archive_file(target, archive or bytes(file.archive), **arguments)
    return target


def archive_of(path: Path) -> bytes:
    with ArchiveFile(path) as file:
        return bytes(file.archive)


def values(page: Page) -> NDArray[np.float32]:
    """All values of a page as they were before any rotation, [components, tokens, channels]."""
    result = []
    for plane in page_planes(page):
        rows = load(plane, page.n_tokens)
        if plane.n_rot:
            hadamard = np.array([[1.0]])
            while len(hadamard) < plane.n_rot:
                hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
            groups = rows.reshape(page.n_tokens, -1, plane.n_rot) @ (hadamard / np.sqrt(plane.n_rot))
            rows = groups.reshape(page.n_tokens, -1)
        result.append(rows)
    return np.array(result, dtype=np.float32)


def relative_error(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean((actual - expected) ** 2) / np.mean(expected**2)))


# what a restore reads


class MappedBytes:
    """A `cancel` that looks, before the first block, how much of a mapped file the process has touched."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.n_bytes: int | None = None

    def is_set(self) -> bool:
        if self.n_bytes is None:
            self.n_bytes = 0
            is_of_file = False
            for line in Path("/proc/self/smaps").read_text().splitlines():
                if "-" in line.split()[0]:
                    is_of_file = line.endswith(str(self.path))
                elif is_of_file and line.startswith("Rss:"):
                    self.n_bytes += int(line.split()[1]) * 1024
        return False


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not say what a process has touched")
@pytest.mark.parametrize("name", ["exact", "balanced"])
def test_no_payload_is_touched_before_the_first_block_is_decoded(tmp_path: Path, name: str) -> None:
    path = tmp_path / "long.archive"
    n_tokens = 2000
    # many large units: a page fault maps up to 64 KiB around it
    with make_engine(write_tiny_model(tmp_path / "wide.gguf", head_size=512, n_layer=4), n_ctx=2048) as engine:
        with engine.session() as session:
            session.prefill([i % 64 for i in range(n_tokens)])
            session.save(path, name)
        with ArchiveFile(path) as file, Archive(file.archive, metadata_only=True) as archive:
            metadata_bytes, payload_bytes = archive.info.metadata_bytes, archive.info.archive_bytes
        touched = MappedBytes(path)
        with engine.session() as session:
            assert session.restore(path, cancel=touched).restored  # type: ignore[arg-type]
        assert touched.n_bytes is not None and touched.n_bytes >= metadata_bytes
        assert touched.n_bytes <= metadata_bytes + 256 * 1024 < payload_bytes / 2


# what a restore gives


@pytest.mark.parametrize("name", NAMES)
def test_every_profile(engine: Engine, saved: dict[str, Path], name: str) -> None:
    with engine.session() as session:
        receipt = session.restore(saved[name], PROMPT)
        assert receipt.restored and receipt.n_tokens == len(PROMPT) and receipt.profile == name
        assert session.tokens.tolist() == PROMPT and session.pos_max == len(PROMPT) - 1 and session.n_evaluated == 0
        page = session.export_page()
        assert bytes(page.payload) == bytes(decode_page(archive_of(saved[name]), page).payload)
        with Page.open(saved["page"]) as native:
            assert receipt.is_exact == (name == "exact") == (page.payload == native.payload)
            assert [c.xxh3 for c in page.components] == [c.xxh3 for c in native.components] or name != "exact"
            error = relative_error(values(page), values(native))
        assert error < PROFILE_BOUNDS[name]
        assert session.logits().shape == (64,) and session.n_evaluated == 1


@pytest.mark.parametrize("flash_attn", [True, False], ids=["rows", "transposed"])
@pytest.mark.parametrize("kv_unified", [True, False], ids=["one_pool", "pool_each"])
def test_exact_continues_like_the_original(
    tiny_model: Path, tmp_path: Path, flash_attn: bool, kv_unified: bool
) -> None:
    options = {"flash_attn": flash_attn, "kv_unified": kv_unified}
    path = tmp_path / "prompt.archive"
    with make_engine(tiny_model, **options) as engine:
        engine.session().prefill(LIVE)
        session = engine.session()
        session.prefill(PROMPT[:-1])
        session.save(path, "exact")
        session.prefill(PROMPT[-1:])
        expected = greedy(session)
    with make_engine(tiny_model, **options) as engine:
        other = engine.session()
        other.prefill(LIVE)
        session = engine.session(seq_id=2)
        assert session.restore(path, PROMPT).n_tokens == len(PROMPT) - 1
        session.prefill(PROMPT[-1:])
        assert session.n_evaluated == 1 and greedy(session) == expected
        assert other.tokens.tolist() == LIVE and other.pos_max == len(LIVE) - 1


def test_saves_of_equal_cells_are_equal(engine: Engine, saved: dict[str, Path], tmp_path: Path) -> None:
    with engine.session() as session:
        session.restore(saved["page"])
        for n_threads in (1, 3):
            session.save(tmp_path / "again", "balanced", n_threads=n_threads)
            assert (tmp_path / "again").read_bytes() == saved["balanced"].read_bytes()
        page = session.export_page()
        assert archive_of(saved["balanced"]) == codec.encode_page(page, "balanced")


@pytest.mark.parametrize(("saved_as", "restored_as"), [("rows", "transposed"), ("transposed", "rows")])
def test_layouts_do_not_matter(tiny_model: Path, tmp_path: Path, saved_as: str, restored_as: str) -> None:
    path, again = tmp_path / "a", tmp_path / "b"
    with make_engine(tiny_model, flash_attn=saved_as == "rows") as engine, engine.session() as session:
        session.prefill(PROMPT)
        session.save(path, "exact")
        expected = session.export_page()
    with make_engine(tiny_model, flash_attn=restored_as == "rows") as engine, engine.session() as session:
        assert session.restore(path).restored
        page = session.export_page()
        np.testing.assert_array_equal(values(page), values(expected))
        session.save(again, "exact")
        assert again.read_bytes() == path.read_bytes()


# relative RMS error of F16 values in a cache of the type; measured 0, 0, 0.0017, 0.0053, 0.085
BOUNDS = {"f32": 1e-9, "f16": 1e-9, "bf16": 0.0021, "q8_0": 0.0065, "q4_0": 0.1}


@pytest.mark.parametrize("type_", CODED_TYPES)
@pytest.mark.parametrize("flash_attn", [True, False], ids=["rows", "transposed"])
def test_into_caches_of_other_types(
    tiny_model: Path, saved: dict[str, Path], tmp_path: Path, type_: str, flash_attn: bool
) -> None:
    type_v = type_ if flash_attn or type_ not in ("q8_0", "q4_0") else "f16"
    options = {"type_k": type_, "type_v": type_v, "flash_attn": flash_attn}
    with Page.open(saved["page"]) as native:
        expected = values(native)
    back = tmp_path / "back"
    with make_engine(tiny_model, **options) as engine, engine.session() as session:
        receipt = session.restore(saved["exact"], PROMPT)
        assert receipt.component_types == {"K": type_, "V": type_v} and receipt.is_exact
        page = session.export_page()
        assert page.components[1].transposed == (not flash_attn)
        assert page.components[0].n_rot == (64 if type_ in ("q8_0", "q4_0") else 0)
        assert bytes(page.payload) == bytes(decode_page(archive_of(saved["exact"]), page).payload)
        assert relative_error(values(page), expected) < BOUNDS[type_]
        session.save(back, "exact")
    with make_engine(tiny_model) as engine, engine.session() as session:
        receipt = session.restore(back, PROMPT)
        assert receipt.component_types == {"K": "f16", "V": "f16"}
        error = relative_error(values(session.export_page()), expected)
        assert error < BOUNDS[type_] + (0 if type_ in ("f32", "f16") else 0.0005)
        if type_ in ("f32", "f16"):
            with Page.open(saved["page"]) as native:
                assert cells(session) == native.payload


@pytest.mark.parametrize("first", ["rotated", "plain"])
def test_rotations_do_not_matter(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    pages, options = [], {"type_k": "q8_0", "type_v": "q8_0"}
    for rotation in ("rotated", "plain") if first == "rotated" else ("plain", "rotated"):
        with monkeypatch.context() as patched:
            if rotation == "plain":
                patched.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
            with make_engine(tiny_model, **options) as engine, engine.session() as session:
                if not pages:
                    session.prefill(PROMPT)
                    session.save(tmp_path / "a", "exact")
                else:
                    assert session.restore(tmp_path / "a", PROMPT).restored
                pages.append(session.export_page())
        assert {c.n_rot for c in pages[-1].components} == {64 if rotation == "rotated" else 0}
    assert bytes(pages[1].payload) == bytes(decode_page(archive_of(tmp_path / "a"), pages[1]).payload)
    assert relative_error(values(pages[1]), values(pages[0])) < BOUNDS["q8_0"]


@pytest.mark.parametrize("type_", CODED_TYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_type_under_every_profile(tiny_model: Path, tmp_path: Path, type_: str, name: str) -> None:
    path = tmp_path / "a"
    with make_engine(tiny_model, type_k=type_, type_v=type_) as engine:
        session, target = engine.session(), engine.session()
        session.prefill(PROMPT)
        receipt = session.save(path, name)
        assert receipt.component_types == {"K": type_, "V": type_}
        assert target.restore(path, PROMPT).restored
        page = target.export_page()
        assert bytes(page.payload) == bytes(decode_page(archive_of(path), page).payload)
        assert archive_of(path) == codec.encode_page(session.export_page(), name)
        if name == "exact":
            assert cells(target) == cells(session)
        # a quantised cache is coded with the error of its own type on top of the profile's; measured 0.101 at most
        assert relative_error(values(page), values(session.export_page())) < PROFILE_BOUNDS[name] * 1.1


def test_one_token_and_only_exact_rows(engine: Engine, tmp_path: Path) -> None:
    for n_tokens in (1, 3):
        for name in NAMES:
            with engine.session() as source, engine.session() as target:
                source.prefill(PROMPT[:n_tokens])
                source.save(tmp_path / "a", name)
                receipt = target.restore(tmp_path / "a", PROMPT)
                assert receipt.n_tokens == n_tokens and target.pos_max == n_tokens - 1
                if name in ("exact", "balanced", "fine"):  # so few are kept as they are
                    assert cells(target) == cells(source)


@pytest.mark.parametrize("profile", [BLOCKS, LOSSY_BLOCKS], ids=lambda profile: profile.name)
def test_a_profile_of_ones_own(engine: Engine, saved: dict[str, Path], profile: codec.Profile) -> None:
    path = saved["blocks" if profile.is_exact else "lossy_blocks"]
    with engine.session() as session:
        receipt = session.restore(path, n_threads=2)
        assert receipt.profile == profile.name and receipt.is_exact == profile.is_exact and receipt.n_threads == 2
        with Archive(archive_of(path)) as archive:
            assert archive.info.n_blocks == 7
        page = session.export_page()
        assert bytes(page.payload) == bytes(decode_page(archive_of(path), page).payload)


# a part of the prompt


@pytest.mark.parametrize("n_same", [1, 3, 4, 5, 31, 32, 33, 100, 199])
def test_the_common_part_is_restored(engine: Engine, saved: dict[str, Path], n_same: int) -> None:
    prompts = [LONG[:n_same], [*LONG[:n_same], (LONG[n_same] + 1) % 64, *LONG[n_same + 1 :], 5, 5]]
    with Page.open(saved["long_page"]) as native, engine.session() as whole:
        whole.import_page(native)
        expected = cells(whole, n_same)
    for prompt in prompts:
        with engine.session() as session:
            receipt = session.restore(saved["blocks"], np.array(prompt, dtype=np.int64))
            assert receipt.restored and receipt.n_tokens == n_same and "200" in receipt.detail
            assert session.tokens.tolist() == LONG[:n_same] and session.pos_max == n_same - 1
            assert cells(session) == expected
            session.prefill(prompt[n_same:])
            assert session.tokens.tolist() == prompt and session.n_evaluated == len(prompt) - n_same
        with engine.session() as session:
            assert session.restore(saved["lossy_blocks"], prompt).n_tokens == n_same
            with engine.session() as whole:
                whole.restore(saved["lossy_blocks"])
                assert cells(session) == cells(whole, n_same)


def test_the_whole_of_it_and_a_longer_prompt(engine: Engine, saved: dict[str, Path]) -> None:
    for prompt in (LONG, [*LONG, 1, 2, 3], None):
        with engine.session() as session:
            receipt = session.restore(saved["blocks"], prompt)
            assert receipt.n_tokens == 200 and receipt.detail == "200 tokens restored at positions 0 .. 199"


def test_nothing_in_common_is_a_miss(tiny_model: Path, saved: dict[str, Path], reference: Any) -> None:
    def attempt(session: Session) -> None:
        for prompt, words in (
            ([(PROMPT[0] + 1) % 64, *PROMPT[1:]], f"token 0 is {PROMPT[0]} in the archive"),
            ([], "the prompt has 0 tokens"),
        ):
            receipt = session.restore(saved["exact"], prompt)
            assert receipt.outcome is Outcome.MISS and receipt.reason is MissReason.TOKENS
            assert words in receipt.detail and receipt.n_tokens == 0

    check_context_untouched(tiny_model, reference, attempt)


@pytest.mark.parametrize("name", ["exact", "page"])
def test_prompts_are_compared_as_they_are(engine: Engine, saved: dict[str, Path], name: str) -> None:
    with engine.session() as session:
        wrapped = np.array(PROMPT, dtype=np.int64) + 2**32
        assert session.restore(saved[name], wrapped).reason is MissReason.TOKENS
        wrong: list[Any] = [[PROMPT], [float(t) for t in PROMPT], np.array(5)]
        for prompt in wrong:
            with pytest.raises(errors.ContextError, match="one row of integers"):
                session.restore(saved[name], prompt)
        assert session.n_tokens == 0 and session.pos_max == -1
        assert session.restore(saved[name], np.array(PROMPT, dtype=np.uint8)).restored


def test_positions_after_the_first(engine: Engine, saved: dict[str, Path], tmp_path: Path) -> None:
    with engine.session() as source:
        source.prefill(LONG)
        later = source.export_page(120, 200)
    path = tmp_path / "later"
    archive = codec.encode_page(later, BLOCKS)
    rewrite(saved["blocks"], path, archive=archive, pos_begin=120, tokens=later.tokens)
    with engine.session() as session:
        with pytest.raises(errors.PageRangeError, match="begins at 120"):
            session.restore(path)
        session.restore(saved["blocks"], LONG[:120])
        receipt = session.restore(path, LONG[:150])
        assert receipt.n_tokens == 30 and session.tokens.tolist() == LONG[:150]
        with Page.open(saved["long_page"]) as native, engine.session() as whole:
            whole.import_page(native)
            assert cells(session) == cells(whole, 150)
    with engine.session() as session:
        receipt = session.restore(path, LONG[:120])
        assert receipt.reason is MissReason.TOKENS and "begins at position 120" in receipt.detail


# misses


def check_miss(model: Path, reference: Any, path: Path, reason: MissReason, *words: str, **options: Any) -> None:
    def attempt(session: Session) -> None:
        receipt = session.restore(path)
        assert receipt.outcome is Outcome.MISS and not receipt.restored and receipt.reason is reason
        assert receipt.n_tokens == 0 and receipt.archive == "lcg3/1" and receipt.profile == "balanced"
        assert not receipt.is_exact and receipt.component_types == {} and receipt.total_ms > 0
        for word in words:
            assert word in receipt.detail

    check_context_untouched(model, reference, attempt, **options)


def test_miss_other_context(tiny_model: Path, other_model: Path, saved: dict[str, Path], tmp_path: Path) -> None:
    path = saved["balanced"]
    cases: list[tuple[Path, dict[str, Any], MissReason, str]] = [
        (other_model, {}, MissReason.MODEL, "other.gguf"),
        (tiny_model, {"namespace": "tenant-a"}, MissReason.NAMESPACE, "tenant-a"),
        (tiny_model, {"rope_freq_base": 5000.0}, MissReason.ROPE, "freq_base"),
    ]
    for model, options, reason, word in cases:
        check_miss(model, untouched_runs(model, **options), path, reason, word, **options)


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
    tiny_model: Path, saved: dict[str, Path], tmp_path: Path, reference: Any, field: str, value: Any, reason: MissReason
) -> None:
    with ArchiveFile(saved["balanced"]) as file:
        identity = msgspec.structs.replace(file.identity, **{field: value})
    path = rewrite(saved["balanced"], tmp_path / "a", identity=identity)
    check_miss(tiny_model, reference, path, reason, field)


def test_miss_other_planes(tiny_model: Path, saved: dict[str, Path], tmp_path: Path, reference: Any) -> None:
    def planes(n_layers: int, n_channels: int = 64) -> list[codec.Plane]:
        return random_planes(1, len(PROMPT), types=[GgmlType.F16] * n_layers, n_channels=n_channels)

    for made, reason, words in (
        (planes(1), MissReason.COMPONENTS, "2 planes"),
        (planes(3), MissReason.COMPONENTS, "6 planes"),
        ([dataclasses.replace(p, layer=p.layer + 1) for p in planes(2)], MissReason.COMPONENTS, "layer 0"),
        (planes(2, 128), MissReason.WIDTH, "128 channels"),
    ):
        path = rewrite(saved["balanced"], tmp_path / "a", archive=codec.encode(made, "balanced"))
        check_miss(tiny_model, reference, path, reason, words)
    # in another order they are the same planes
    path = rewrite(saved["balanced"], tmp_path / "a", archive=codec.encode(planes(2)[::-1], "balanced"))
    with make_engine(tiny_model) as engine, engine.session() as session:
        assert session.restore(path).restored


# damage: an error, and nothing changed


def test_damaged_archives(tiny_model: Path, saved: dict[str, Path], tmp_path: Path, reference: Any) -> None:
    data = saved["lossy_blocks"].read_bytes()
    n_archive = len(archive_of(saved["lossy_blocks"]))
    begin = len(data) - n_archive
    path = tmp_path / "damaged"
    offsets = sorted({*range(0, 64), *range(64, n_archive, 211), n_archive - 1})

    def attempt(session: Session) -> None:
        for offset in offsets:
            damaged = bytearray(data)
            damaged[begin + offset] ^= 0x10
            path.write_bytes(damaged)
            with pytest.raises(errors.ArchiveImportError) as caught:
                session.restore(path, LONG)
            assert caught.value.status_name in ("ERR_ARCHIVE", "ERR_ARCHIVE_FORMAT") and len(str(caught.value)) > 20
            assert session.n_tokens == 0 and session.pos_max == -1

    check_context_untouched(tiny_model, reference, attempt)


def test_archives_cut_short(tiny_model: Path, saved: dict[str, Path], tmp_path: Path, reference: Any) -> None:
    archive = archive_of(saved["balanced"])
    others = [archive[:n] for n in (1, 63, 64, len(archive) // 2, len(archive) - 1)]
    others += [archive + b"\0", b"LCG4" + archive[4:], archive[:4] + b"\2" + archive[5:], b"x" * 500]

    def attempt(session: Session) -> None:
        for other in others:
            path = rewrite(saved["balanced"], tmp_path / "a", archive=other)
            with pytest.raises(errors.ArchiveImportError):
                session.restore(path)

    check_context_untouched(tiny_model, reference, attempt)


def test_damage_behind_the_wanted_tokens(engine: Engine, saved: dict[str, Path], tmp_path: Path) -> None:
    data = bytearray(saved["blocks"].read_bytes())
    data[-1] ^= 1
    path = tmp_path / "damaged"
    path.write_bytes(data)
    with engine.session() as session:
        with pytest.raises(errors.ArchiveImportError):
            session.restore(path)
        assert session.n_tokens == 0 and session.pos_max == -1
        assert session.restore(path, LONG[:100]).n_tokens == 100


def test_a_header_that_says_something_else_than_the_archive(
    tiny_model: Path, saved: dict[str, Path], tmp_path: Path, reference: Any
) -> None:
    tokens = np.array(PROMPT, dtype=np.int32)

    def attempt(session: Session) -> None:
        for changes, words in (
            ({"is_exact": True}, "lossless, the archive is lossy"),
            ({"tokens": tokens[:-1]}, "49 tokens, the archive has 50"),
            ({"tokens": np.append(tokens, tokens[:1])}, "51 tokens, the archive has 50"),
        ):
            path = rewrite(saved["balanced"], tmp_path / "a", **changes)  # type: ignore[arg-type]
            with pytest.raises(errors.PageFileCorruptError, match=words):
                session.restore(path)

    check_context_untouched(tiny_model, reference, attempt)


def test_damaged_prefixes_and_what_is_no_file(
    tiny_model: Path, saved: dict[str, Path], tmp_path: Path, reference: Any
) -> None:
    data = saved["balanced"].read_bytes()
    path = tmp_path / "a"
    os.mkfifo(tmp_path / "fifo")

    def attempt(session: Session) -> None:
        for offset in range(0, 5000, 61):
            if offset < len(data) - len(archive_of(saved["balanced"])):
                path.write_bytes(data[:offset] + bytes([data[offset] ^ 4]) + data[offset + 1 :])
                with pytest.raises(errors.PageFileError):
                    session.restore(path)
        for n_bytes in (0, 1, 3, 4, 7, 8, 127, 128, 600, 4096, len(data) - 1):
            path.write_bytes(data[:n_bytes])
            with pytest.raises(errors.PageFileTruncatedError):
                session.restore(path)
        for name, kind in (
            ("fifo", errors.PageFileNotRegularError),
            (".", errors.PageFileNotRegularError),
            ("missing", errors.PageFileMissingError),
        ):
            with pytest.raises(kind):
                session.restore(tmp_path / name)

    check_context_untouched(tiny_model, reference, attempt)


def test_no_room(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "long"
    with make_engine(tiny_model, n_ctx=1024, n_seq_max=1) as engine, engine.session() as session:
        session.prefill((PROMPT * 20)[:600])
        session.save(path, "balanced")

    def attempt(session: Session) -> None:
        with pytest.raises(errors.NoCellsError, match=r"600 tokens do not fit.*256 cells.*raise n_ctx"):
            session.restore(path)

    check_context_untouched(tiny_model, untouched_runs(tiny_model), attempt)


def test_occupied_range(engine: Engine, saved: dict[str, Path]) -> None:
    with engine.session() as session:
        session.prefill(LIVE)
        logits, before = session.logits(), cells(session)
        with pytest.raises(errors.PageRangeError, match="already holds"):
            session.restore(saved["exact"])
        assert session.tokens.tolist() == LIVE and cells(session) == before and session.logits() is logits
        assert session.n_evaluated == len(LIVE)


# cancellation and interruption


class CancelAt(threading.Event):
    """Set by another thread when it is asked for the n-th time."""

    def __init__(self, n_calls: int) -> None:
        super().__init__()
        self.n_calls = 0
        self._thread = threading.Thread(target=self.set)
        self._set_at = n_calls

    def is_set(self) -> bool:
        self.n_calls += 1
        if self.n_calls == self._set_at:
            self._thread.start()
            self._thread.join()
        return super().is_set()


class InterruptAt(CancelAt):
    """Ctrl-C while it is asked for the n-th time."""

    def is_set(self) -> bool:
        if super().is_set():
            raise KeyboardInterrupt
        return False


@pytest.mark.parametrize("kind", [CancelAt, InterruptAt])
def test_cancelled_restore(tiny_model: Path, saved: dict[str, Path], reference: Any, kind: Any) -> None:
    expected = errors.CancelledError if kind is CancelAt else KeyboardInterrupt
    never = kind(1000)
    with make_engine(tiny_model) as engine, engine.session() as session:
        assert session.restore(saved["lossy_blocks"], cancel=never).restored
    assert never.n_calls >= 8  # exact rows and seven blocks

    def attempt(session: Session) -> None:
        for n_calls in range(1, never.n_calls + 1):
            with pytest.raises(expected):
                session.restore(saved["lossy_blocks"], LONG, cancel=kind(n_calls))
            assert session.n_tokens == 0 and session.pos_max == -1
        before = threading.Event()
        before.set()
        with pytest.raises(errors.CancelledError):
            session.restore(saved["exact"], cancel=before)
        assert session.restore(saved["exact"], PROMPT, cancel=threading.Event()).restored
        session.clear()

    check_context_untouched(tiny_model, reference, attempt)


@pytest.mark.parametrize("kind", [CancelAt, InterruptAt])
@pytest.mark.parametrize("profile", [BLOCKS, LOSSY_BLOCKS], ids=lambda profile: profile.name)
def test_cancelled_save(engine: Engine, tmp_path: Path, kind: Any, profile: codec.Profile) -> None:
    expected = errors.CancelledError if kind is CancelAt else KeyboardInterrupt
    path, old = tmp_path / "new", tmp_path / "old"
    old.write_bytes(b"precious")
    with engine.session() as session:
        session.prefill(LONG)
        before, logits = cells(session), session.logits()
        never = kind(1000)
        session.save(path, profile, cancel=never)
        saved = path.read_bytes()
        path.unlink()
        assert never.n_calls >= 2
        for n_calls in range(1, never.n_calls + 1):
            for target in (path, old):
                with pytest.raises(expected):
                    session.save(target, profile, cancel=kind(n_calls))
        already = threading.Event()
        already.set()
        with pytest.raises(errors.CancelledError):
            session.save(path, profile, cancel=already)
        assert os.listdir(tmp_path) == ["old"] and old.read_bytes() == b"precious"
        assert session.tokens.tolist() == LONG and cells(session) == before and session.logits() is logits
        session.save(old, profile)
        assert old.read_bytes() == saved


@pytest.fixture
def with_ctrl_c() -> Iterator[None]:
    """Python's own handler: a shell's background jobs are started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("with_ctrl_c")
def test_ctrl_c_at_any_moment(engine: Engine, saved: dict[str, Path], tmp_path: Path) -> None:
    seen = []
    with engine.session() as source, engine.session() as target:
        source.restore(saved["blocks"])
        for i in range(120):
            target.clear()
            is_sent = threading.Event()

            def send(is_sent: threading.Event = is_sent, delay: float = 0.00002 * (i // 2)) -> None:
                time.sleep(delay)
                os.kill(os.getpid(), signal.SIGINT)
                is_sent.set()

            outcome = "late"
            thread = threading.Thread(target=send)
            try:
                thread.start()
                for _ in range(3):
                    if i % 2:
                        source.save(tmp_path / "a", LOSSY_BLOCKS)
                    else:
                        target.clear()
                        target.restore(saved["lossy_blocks"])
                is_sent.wait()
                time.sleep(0.01)
            except KeyboardInterrupt:
                outcome = "interrupted"
            thread.join()
            seen.append(outcome)
            assert target.pos_max == target.n_tokens - 1 and target.n_tokens in (0, len(LONG))
            assert set(os.listdir(tmp_path)) <= {"a"}
    # Python itself loses one that arrives while an object is finalised
    assert seen.count("interrupted") >= len(seen) - 2


@pytest.mark.parametrize("name", ["exact", "page"])
def test_interrupt_right_after_the_import(
    tiny_model: Path, saved: dict[str, Path], reference: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = _binding.check
    taken: list[int] = []

    def interrupted(status: int) -> None:
        check(status)
        if taken[0] == 0 and session_pos_max() >= 0:
            taken[0] = 1
            raise KeyboardInterrupt

    session_pos_max: Callable[[], int]

    def attempt(session: Session) -> None:
        nonlocal session_pos_max
        session_pos_max = lambda: session.pos_max  # noqa: E731
        taken[:] = [0]
        with monkeypatch.context() as patched:
            patched.setattr(_binding, "check", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.restore(saved[name], PROMPT)
        assert taken == [1] and session.n_tokens == 0 and session.pos_max == -1

    check_context_untouched(tiny_model, reference, attempt)


def test_interrupt_right_after_a_truncation(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = _binding.llama.llama_memory_seq_rm

    def interrupted(*arguments: Any) -> None:
        remove(*arguments)
        raise KeyboardInterrupt

    with engine.session() as session:
        session.prefill(PROMPT)
        with monkeypatch.context() as patched:
            patched.setattr(_binding.llama, "llama_memory_seq_rm", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.truncate(20)
        assert session.tokens.tolist() == PROMPT[:20] and session.pos_max == 19


# saves that fail


def page_with(page: Page, component: int, token: int, bits: int) -> Page:
    """The same page with one value of F16 rows replaced."""
    payload = bytearray(page.payload)
    target = page.components[component]
    at = target.offset + token * target.row_bytes
    payload[at : at + 2] = bits.to_bytes(2, "little")
    digest = xxhash.xxh3_64_intdigest(bytes(payload[target.offset : target.offset + target.n_bytes]))
    components: list[PageComponent] = list(page.components)
    components[component] = dataclasses.replace(target, xxh3=digest)
    return Page(
        identity=page.identity,
        pos_begin=page.pos_begin,
        tokens=page.tokens,
        components=components,
        payload=bytes(payload),
    )


@pytest.mark.parametrize("bits", [0x7E00, 0x7C00, 0xFC00, 0x7C01], ids=["nan", "inf", "minus_inf", "signalling_nan"])
@pytest.mark.parametrize("component", [0, 3])
def test_values_that_a_lossy_profile_cannot_keep(
    engine: Engine, saved: dict[str, Path], tmp_path: Path, bits: int, component: int
) -> None:
    path, old = tmp_path / "new", tmp_path / "old"
    old.write_bytes(b"precious")
    with engine.session() as session, engine.session() as target:
        with Page.open(saved["page"]) as native:
            session.import_page(page_with(native, component, 20, bits))
        before = cells(session)
        for name in ("balanced", "fine", "lmcache"):
            for where in (path, old):
                with pytest.raises(errors.NonFiniteError):
                    session.save(where, name)
        assert os.listdir(tmp_path) == ["old"] and old.read_bytes() == b"precious"
        assert session.tokens.tolist() == PROMPT and cells(session) == before
        assert session.save(path, "exact").is_exact
        target.restore(path)
        assert cells(target) == before


@pytest.mark.parametrize("failing", [1, 2, -1], ids=["first", "second", "last"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_disk_full(
    engine: Engine, tmp_path: Path, failing: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, old = tmp_path / "new", tmp_path / "old"
    old.write_bytes(b"precious")
    pwrite, n_calls = os.pwrite, 0

    def counted(fd: int, data: Any, offset: int) -> int:
        nonlocal n_calls
        n_calls += 1
        if n_calls == failing:
            raise error(errno.ENOSPC, "no space left")
        return pwrite(fd, data, offset)

    with engine.session() as session:
        session.prefill(LONG)
        before = cells(session)
        monkeypatch.setattr(os, "pwrite", counted)
        if failing < 0:
            session.save(path, BLOCKS)
            path.unlink()
            failing = n_calls
        for target in (path, old):
            n_calls = 0
            with pytest.raises(error) as caught:
                session.save(target, BLOCKS)
            if isinstance(caught.value, OSError):
                assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(target)
        assert os.listdir(tmp_path) == ["old"] and old.read_bytes() == b"precious"
        assert session.tokens.tolist() == LONG and cells(session) == before


def test_the_library_writes(
    engine: Engine, saved: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a cache on a device: the same file, and the system's own error."""
    monkeypatch.setattr(session_archives, "_writes_by_itself", lambda _components: True)
    with engine.session() as session:
        session.restore(saved["long_page"])
        receipt = session.save(tmp_path / "a", LOSSY_BLOCKS)
        assert (tmp_path / "a").read_bytes() == saved["lossy_blocks"].read_bytes()
        assert 0 < receipt.write_ms <= receipt.export_ms
        before = cells(session)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (receipt.file_bytes - 100, hard))
        try:
            with pytest.raises(OSError) as caught:
                session.save(tmp_path / "b", LOSSY_BLOCKS)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert caught.value.errno == errno.EFBIG and caught.value.filename == str(tmp_path / "b")
        stopped = threading.Event()
        stopped.set()
        with pytest.raises(errors.CancelledError):
            session.save(tmp_path / "b", LOSSY_BLOCKS, cancel=stopped)
        assert os.listdir(tmp_path) == ["a"] and cells(session) == before


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_save_that_does_not_reach_the_disk(
    engine: Engine, tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"precious")

    def fail(*arguments: Any) -> None:
        raise OSError(errno.EIO, "no")

    with engine.session() as session:
        session.prefill(PROMPT)
        with monkeypatch.context() as patched:
            patched.setattr(os, failing, fail)
            with pytest.raises(OSError):
                session.save(path, "balanced")
    assert os.listdir(tmp_path) == ["a"] and path.read_bytes() == b"precious"


@pytest.mark.parametrize("profile", [None, "balanced"], ids=["page", "archive"])
def test_interrupt_right_after_the_file_was_made(
    engine: Engine, tmp_path: Path, profile: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.open

    def interrupted(path: Any, flags: int, *more: Any) -> int:
        os.close(make(path, flags, *more))
        raise KeyboardInterrupt

    with engine.session() as session:
        session.prefill(PROMPT)
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.save(tmp_path / "a", profile)
    assert os.listdir(tmp_path) == []


def test_writes_in_small_pieces(
    engine: Engine, saved: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:1000], offset))
    with engine.session() as session:
        session.restore(saved["page"])
        session.save(tmp_path / "a", "balanced")
    assert (tmp_path / "a").read_bytes() == saved["balanced"].read_bytes()
    with engine.session() as session:
        session.prefill(PROMPT)
        monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: 0)
        with pytest.raises(OSError, match="wrote nothing"):
            session.save(tmp_path / "b", "balanced")
    assert os.listdir(tmp_path) == ["a"]


def test_wrong_calls(engine: Engine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with engine.session() as session:
        with pytest.raises(errors.ContextError, match="empty sequence"):
            session.save(tmp_path / "a", "balanced")
        session.prefill(PROMPT)
        with pytest.raises(ValueError, match="no profile 'best'"):
            session.save(tmp_path / "a", "best")
        for name in ("fifo", "."):
            with pytest.raises(errors.PageFileNotRegularError):
                session.save(tmp_path / name, "balanced")
        with pytest.raises(FileNotFoundError):
            session.save(tmp_path / "missing" / "a", "balanced")
    assert os.listdir(tmp_path) == ["fifo"]
    for call in (lambda: session.save(tmp_path / "a", "exact"), lambda: session.restore(tmp_path / "a")):
        with pytest.raises(errors.ContextError, match="closed"):
            call()


# receipts and capabilities


@pytest.mark.parametrize("name", NAMES)
def test_receipts(engine: Engine, tmp_path: Path, name: str) -> None:
    path = tmp_path / "a"
    with engine.session() as session, engine.session() as target:
        session.prefill(PROMPT)
        saved = session.save(path, name)
        restored = target.restore(path, PROMPT)
    for receipt in (saved, restored):
        assert (receipt.archive, receipt.profile, receipt.is_exact) == ("lcg3/1", name, name == "exact")
        assert receipt.backend == "CPU" and receipt.component_types == {"K": "f16", "V": "f16"}
        assert receipt.component_backends == ("CPU",) * 4
        # tables and scratch of a tiny archive: more than nothing, less than a wild count
        assert 4096 < receipt.transient_bytes < 1 << 20
        assert receipt.n_tokens == len(PROMPT) and receipt.n_cell_runs == 1
        plain = receipt.as_dict()
        assert plain["profile"] == name and all(not isinstance(value, bytes) for value in plain.values())
        assert all(value >= 0 for key, value in plain.items() if key.endswith("_ms"))
    assert saved.path == str(path) and saved.file_bytes == path.stat().st_size
    assert saved.payload_bytes == len(archive_of(path)) < saved.file_bytes
    assert 0 <= saved.write_ms <= saved.export_ms <= saved.total_ms
    assert saved.export_ms + saved.fsync_ms <= saved.total_ms
    assert restored.outcome is Outcome.RESTORED and restored.reason is None and restored.n_threads == 2
    assert restored.payload_bytes == 4 * 64 * 2 * len(PROMPT)
    phases = restored.open_ms + restored.reserve_ms + restored.copy_ms + restored.commit_ms
    assert 0 < phases <= restored.total_ms and restored.open_ms > 0


def test_host_staging_is_off_unless_asked_for_and_changes_nothing_where_it_is_not_needed(
    engine: Engine, tmp_path: Path
) -> None:
    paths = [tmp_path / "plain", tmp_path / "asked"]
    with engine.session() as session, engine.session() as target:
        session.prefill(PROMPT)
        assert session.save(paths[0], "exact").n_host_staged == 0
        assert session.save(paths[1], "exact", host_staged=True).n_host_staged == 0
        assert paths[0].read_bytes() == paths[1].read_bytes()
        receipt = target.restore(paths[0], PROMPT, host_staged=True)
        assert receipt.restored and receipt.n_host_staged == 0 and receipt.as_dict()["n_host_staged"] == 0
        assert cells(session) == cells(target)
    for asked in (False, True):
        with import_options(1, None, host_staged=asked) as (options, _handle):
            assert options.flags == int(asked)


@pytest.mark.parametrize("flash_attn", [True, False], ids=["rows", "transposed"])
def test_capabilities(tiny_model: Path, flash_attn: bool) -> None:
    with make_engine(tiny_model, type_k="q8_0", flash_attn=flash_attn) as engine:
        archives = engine.capabilities().archives
        with engine.session() as session:
            session.prefill(PROMPT)
            components = session.export_page().components
    assert [(a.layer, a.kind, a.type_name, a.transposed) for a in archives] == [
        (c.layer, c.kind, c.type_name, c.transposed) for c in components
    ]
    assert [a.kind for a in archives] == [ComponentKind.K, ComponentKind.V] * 2
    assert all(a.can_import and a.can_export and a.can_stage and a.backend == "CPU" for a in archives)


def test_a_type_without_a_codec(tiny_model: Path, saved: dict[str, Path], tmp_path: Path) -> None:
    options = {"type_k": "q5_0"}
    with make_engine(tiny_model, **options) as engine, engine.session() as session:
        archives = engine.capabilities().archives
        assert [a.can_export for a in archives] == [a.can_import for a in archives] == [False, True] * 2
        assert [a.can_stage for a in archives] == [False, True] * 2
        session.prefill(PROMPT)
        for name in NAMES:
            with pytest.raises(errors.UnsupportedMemoryError, match="q5_0") as caught:
                session.save(tmp_path / "a", name)
            assert caught.value.status_name == "REFUSED_CODEC"
        assert os.listdir(tmp_path) == []
        session.save(tmp_path / "page")

    def attempt(session: Session) -> None:
        with pytest.raises(errors.UnsupportedMemoryError, match="q5_0"):
            session.restore(saved["exact"])

    check_context_untouched(tiny_model, untouched_runs(tiny_model, **options), attempt, **options)


# a real model


def test_a_real_model(tmp_path: Path) -> None:
    try:
        model = resolve_model("smollm2")
    except ModelFetchError:
        pytest.skip("smollm2 was not fetched")
    text = "The cache of a language model holds the keys and values of every token it has read. " * 20
    with Engine(model, n_ctx=512, n_seq_max=2, n_threads=2) as engine:
        source = engine.session()
        tokens = engine.tokenize(text)[:300]
        source.prefill(tokens)
        native = source.save(tmp_path / "page")
        sizes, restored = {}, {}
        for name in NAMES:
            sizes[name] = source.save(tmp_path / name, name).file_bytes
            with engine.session() as target:
                assert target.restore(tmp_path / name, tokens).restored
                if name == "exact":
                    assert cells(target) == cells(source)
                restored[name] = list(target.generate(16, stop=False))
        expected = list(source.generate(16, stop=False))
    assert restored["exact"] == expected
    assert all(restored[name][:4] == expected[:4] for name in NAMES)
    assert sizes["balanced"] < sizes["fine"] < sizes["exact"] < native.file_bytes
    assert sizes["lmcache"] < native.file_bytes / 3
