"""Page files: round trips, damage of every kind, crafted numbers, interrupted writes."""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import socket
import struct
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import blake3
import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cachegen.errors import (
    PageFileCorruptError,
    PageFileError,
    PageFileMissingError,
    PageFileNotRegularError,
    PageFileTruncatedError,
    PageFileVersionError,
)
from llama_cachegen.ggml_types import GgmlType
from llama_cachegen.page import ComponentKind, Page, PageComponent, size_of
from llama_cachegen.page_file import HEADER, MAGIC, RECORD, plan_file
from llama_cachegen.page_identity import PageIdentity, RopeIdentity
from numpy.typing import NDArray

IDENTITY = PageIdentity(
    model_blake3="0123456789abcdef" * 4,
    model_name="tiny.gguf",
    llama_commit="ab" * 20,
    patch_digest="cd" * 32,
    abi_version=1,
    rope=RopeIdentity(
        rope_type=0,
        n_ctx_orig_yarn=8192,
        freq_base=100000.0,
        freq_scale=1.0,
        yarn_ext_factor=0.0,
        yarn_attn_factor=1.0,
        yarn_beta_fast=32.0,
        yarn_beta_slow=1.0,
    ),
)
UNKNOWN_TYPE = 99

Spec = tuple[int, ComponentKind, int, bool, int]
"""layer, kind, type, transposed, blocks of a row"""


def make_page(
    specs: Sequence[Spec],
    tokens: Sequence[int],
    *,
    pos_begin: int = 0,
    seed: int = 0,
    identity: PageIdentity = IDENTITY,
) -> Page:
    rng = random.Random(seed)
    payload = bytearray()
    components = []
    for layer, kind, number, transposed, n_blocks in specs:
        if number == UNKNOWN_TYPE:
            n_channels, row_bytes = n_blocks, 3 * n_blocks
        else:
            n_channels = n_blocks * GgmlType(number).block_size
            row_bytes = GgmlType(number).row_bytes(n_channels)
        data = rng.randbytes(len(tokens) * row_bytes)
        components.append(
            PageComponent(
                layer=layer,
                kind=kind,
                type=number,
                transposed=transposed,
                n_rot=rng.choice((0, 64)),
                n_tokens=len(tokens),
                n_channels=n_channels,
                row_bytes=row_bytes,
                offset=len(payload),
                n_bytes=len(data),
                xxh3=xxhash.xxh3_64_intdigest(data),
            )
        )
        payload += data + bytes(-len(data) % 64)
    return Page(
        identity=identity,
        pos_begin=pos_begin,
        tokens=np.array(tokens, dtype=np.int32),
        components=components,
        payload=bytes(payload),
    )


TINY: tuple[Spec, ...] = ((0, ComponentKind.K, 1, False, 5), (0, ComponentKind.V, 1, True, 3))


def tiny_page(**kwargs: Any) -> Page:
    return make_page(TINY, [7, -1, 2**31 - 1], pos_begin=4, **kwargs)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.page"
    tiny_page().write(path)
    return path


@st.composite
def pages(draw: st.DrawFn) -> Page:
    keys = draw(
        st.lists(
            st.tuples(st.integers(0, 2**31 - 1), st.sampled_from((ComponentKind.K, ComponentKind.V))),
            min_size=1,
            max_size=8,
            unique=True,
        )
    )
    specs = []
    for layer, kind in keys:
        number = draw(st.sampled_from([int(member) for member in GgmlType] + [UNKNOWN_TYPE]))
        may_transpose = number == UNKNOWN_TYPE or GgmlType(number).block_size == 1
        specs.append((layer, kind, number, may_transpose and draw(st.booleans()), draw(st.integers(1, 9))))
    tokens = draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20))
    pos_begin = draw(st.integers(0, 2**31 - 1 - len(tokens)))
    identity = msgspec.structs.replace(IDENTITY, namespace=draw(st.text(max_size=10)))
    return make_page(specs, tokens, pos_begin=pos_begin, seed=draw(st.integers(0, 99)), identity=identity)


# round trips


@settings(deadline=None, max_examples=200)
@given(pages())
def test_round_trip(page: Page) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "a.page")
        stats = page.write(path)
        assert stats.path == str(path)
        assert stats.file_bytes == size_of(page) == page.n_file_bytes == path.stat().st_size
        assert stats.write_ms >= 0 and stats.fsync_ms >= 0
        assert os.listdir(directory) == ["a.page"]
        assert path.stat().st_mode & 0o777 == 0o600
        with Page.open(path, verify=True) as read:
            assert read.identity == page.identity
            assert read.pos_begin == page.pos_begin
            assert read.tokens.dtype == np.int32 and np.array_equal(read.tokens, page.tokens)
            assert read.components == page.components
            assert read.payload == page.payload
            assert read.payload_bytes == page.payload_bytes and size_of(read) == size_of(page)
            for i in range(len(read.components)):
                assert np.array_equal(read.numpy(i).view(np.uint8), page.numpy(i).view(np.uint8))
            copy = Path(directory, "b.page")
            read.write(copy)
            assert copy.read_bytes() == path.read_bytes()


def test_equal_pages_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        tiny_page().write(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_documented_bytes(tiny: Path) -> None:
    data = tiny.read_bytes()
    assert (HEADER.size, RECORD.size) == (192, 56)
    assert data[:8] == MAGIC == b"\x89LKP\r\n\x1a\n"
    version, abi, header_bytes, file_bytes = struct.unpack_from("<HHIQ", data, 8)
    assert (version, abi, header_bytes, file_bytes) == (1, 1, 192, len(data))
    sections = struct.unpack_from("<8Q", data, 24)
    assert sections[0] == 192 and sections[3] == 12 and sections[5] == 2 * 56
    assert sections[2] % 8 == 0 and sections[4] % 8 == 0 and sections[6] % 4096 == 0
    assert struct.unpack_from("<iIII", data, 88) == (4, 3, 2, 56)
    zeroed = data[:160] + bytes(32) + data[192 : sections[6]]
    assert blake3.blake3(zeroed).digest() == data[160:192]
    assert struct.unpack_from("<3i", data, sections[2]) == (7, -1, 2**31 - 1)


def test_all_types_as_arrays(tmp_path: Path) -> None:
    specs: list[Spec] = [
        (0, ComponentKind.K, GgmlType.F32, False, 5),
        (0, ComponentKind.V, GgmlType.F32, True, 5),
        (1, ComponentKind.K, GgmlType.F16, False, 5),
        (1, ComponentKind.V, GgmlType.F16, True, 5),
        (2, ComponentKind.K, GgmlType.BF16, False, 5),
        (2, ComponentKind.V, GgmlType.BF16, True, 5),
        (3, ComponentKind.K, GgmlType.Q8_0, False, 2),
        (3, ComponentKind.V, UNKNOWN_TYPE, False, 5),
        (4, ComponentKind.V, UNKNOWN_TYPE, True, 5),
    ]
    page = make_page(specs, [1, 2, 3])
    page.write(tmp_path / "p")
    wanted: list[tuple[type, tuple[int, int]]] = [
        (np.float32, (3, 5)),
        (np.float32, (5, 3)),
        (np.float16, (3, 5)),
        (np.float16, (5, 3)),
        (np.uint16, (3, 5)),
        (np.uint16, (5, 3)),
        (np.uint8, (3, 68)),
        (np.uint8, (3, 15)),
        (np.uint8, (5, 9)),
    ]
    with Page.open(tmp_path / "p") as read:
        for i, (dtype, shape) in enumerate(wanted):
            array = read.numpy(i)
            assert (array.dtype, array.shape) == (np.dtype(dtype), shape)
            assert not array.flags.writeable
            assert np.shares_memory(array, np.frombuffer(read.payload, dtype=np.uint8))
            component = read.components[i]
            data = bytes(read.payload[component.offset : component.offset + component.n_bytes])
            assert array.tobytes() == data
    assert page.components[7].type_name == "type 99"


def test_a_page_of_another_byte_order_opens(tmp_path: Path) -> None:
    other: Any = "big" if sys.byteorder == "little" else "little"
    tiny_page(identity=msgspec.structs.replace(IDENTITY, endianness=other)).write(tmp_path / "p")
    with Page.open(tmp_path / "p", verify=True) as page:
        assert page.identity.endianness == other
        assert page.numpy(0).dtype.newbyteorder("S").isnative


def test_a_page_of_another_abi_opens(tmp_path: Path) -> None:
    tiny_page(identity=msgspec.structs.replace(IDENTITY, abi_version=2)).write(tmp_path / "p")
    with Page.open(tmp_path / "p", verify=True) as page:
        assert page.identity.abi_version == 2


# memory


def test_payload_is_never_copied() -> None:
    buffer = np.zeros(1 << 20, dtype=np.uint8)
    component = PageComponent(
        layer=0,
        kind=ComponentKind.K,
        type=0,
        transposed=False,
        n_rot=0,
        n_tokens=1,
        n_channels=1 << 18,
        row_bytes=1 << 20,
        offset=0,
        n_bytes=1 << 20,
        xxh3=xxhash.xxh3_64_intdigest(buffer.tobytes()),
    )
    page = Page(identity=IDENTITY, pos_begin=0, tokens=[1], components=[component], payload=buffer)
    assert np.shares_memory(np.frombuffer(page.payload, dtype=np.uint8), buffer)
    assert np.shares_memory(page.numpy(0), buffer)
    assert page.payload.readonly and page.payload.format == "B"
    page.verify()
    with tempfile.TemporaryDirectory() as directory:
        page.write(Path(directory, "a"))
        tracemalloc.start()
        page.write(Path(directory, "b"))
        with Page.open(Path(directory, "b"), verify=True) as read:
            read.numpy(0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 1 << 18


def test_everything_is_read_only(tiny: Path) -> None:
    with Page.open(tiny) as page:
        assert page.payload.readonly and page.payload.format == "B"
        for array in (page.tokens, page.numpy(0)):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        with pytest.raises(TypeError):
            page.payload[0] = 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            page.components[0].layer = 1  # type: ignore[misc]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="__buffer__ came with Python 3.12")
def test_a_page_is_a_buffer(tiny: Path) -> None:
    with Page.open(tiny) as page:
        buffer: Any = page
        assert memoryview(buffer) == page.payload


def test_arrays_outlive_the_page(tiny: Path) -> None:
    page = Page.open(tiny)
    expected = page.numpy(0).copy()
    array = page.numpy(0)
    held = page.payload[:64]
    page.close()
    page.close()
    gc.collect()
    assert np.array_equal(array.view(np.uint16), expected.view(np.uint16))
    assert len(bytes(held)) == 64
    assert page.n_tokens == 3 and list(page.tokens) == [7, -1, 2**31 - 1]
    for use in (lambda: page.payload, lambda: page.numpy(0), page.verify, lambda: page.write(tiny)):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert "closed" in repr(page)


def test_pages_in_cycles_are_collected(tiny: Path) -> None:
    for close in (False, True):
        page = Page.open(tiny)
        cycle: list[Any] = [page, page.numpy(0), page.payload[:8]]
        cycle.append(cycle)
        if close:
            page.close()
        del page, cycle
        gc.collect()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_nothing_stays_open(tiny: Path) -> None:
    def n_open() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = n_open()
    for _ in range(5):
        with Page.open(tiny, verify=True):
            pass
    damaged = bytearray(tiny.read_bytes())
    damaged[-1] ^= 1
    tiny.write_bytes(damaged)
    for _ in range(5):
        with pytest.raises(PageFileCorruptError):
            Page.open(tiny)
    assert n_open() == before


# what a page must fulfil


@pytest.mark.parametrize(
    "change",
    [
        {"layer": -1},
        {"kind": 3},
        {"type": -1},
        {"type": int(GgmlType.Q8_0)},
        {"type": int(GgmlType.F32)},
        {"n_tokens": 2},
        {"n_channels": 0},
        {"n_channels": 4},
        {"row_bytes": 12},
        {"row_bytes": 2**32},
        {"offset": 64},
        {"offset": -64},
        {"n_bytes": 28},
        {"n_rot": -1},
        {"xxh3": 2**64},
        {"kind": ComponentKind.V},
    ],
)
def test_impossible_components_are_refused(change: dict[str, Any]) -> None:
    page = tiny_page()
    first = dataclasses.replace(page.components[0], **change)
    with pytest.raises(ValueError, match="component"):
        Page(
            identity=IDENTITY,
            pos_begin=0,
            tokens=page.tokens,
            components=[first, page.components[1]],
            payload=page.payload,
        )


@pytest.mark.parametrize(
    ("pos_begin", "tokens", "n_components", "payload"),
    [
        (-1, [1, 2, 3], 2, bytes(128)),
        (2**31 - 3, [1, 2, 3], 2, bytes(128)),
        (0, [], 2, bytes(128)),
        (0, [[1, 2, 3]], 2, bytes(128)),
        (0, [1, 2, 3], 0, bytes(128)),
        (0, [1, 2, 3], 1, bytes(128)),
        (0, [1, 2, 3], 2, bytes(64)),
        (0, [1, 2, 3], 2, bytes(192)),
        (0, [1, 2, 3], 2, b""),
        (0, [1, 2, 3], 2, memoryview(bytes(256))[::2]),
    ],
)
def test_impossible_pages_are_refused(pos_begin: int, tokens: Any, n_components: int, payload: Any) -> None:
    components = tiny_page().components[:n_components]
    with pytest.raises(ValueError):
        Page(identity=IDENTITY, pos_begin=pos_begin, tokens=tokens, components=components, payload=payload)


def test_padding_that_is_not_zero_is_not_written(tmp_path: Path) -> None:
    page = tiny_page()
    payload = bytearray(page.payload)
    payload[63] = 1
    bad = Page(identity=IDENTITY, pos_begin=0, tokens=page.tokens, components=page.components, payload=bytes(payload))
    with pytest.raises(PageFileCorruptError, match="layer 0 K"):
        bad.verify()
    with pytest.raises(ValueError, match="layer 0 K"):
        bad.write(tmp_path / "p")
    assert os.listdir(tmp_path) == []


# damage


def assert_refused(path: Path, kind: type[PageFileError] = PageFileError) -> PageFileError:
    with pytest.raises(kind) as caught:
        Page.open(path, verify=True).close()
    assert str(path) in str(caught.value)
    return caught.value


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_byte_is_checked(tiny: Path, mask: int) -> None:
    original = tiny.read_bytes()
    with open(tiny, "r+b", buffering=0) as file:
        for i, byte in enumerate(original):
            os.pwrite(file.fileno(), bytes([byte ^ mask]), i)
            assert_refused(tiny)
            os.pwrite(file.fileno(), bytes([byte]), i)
    Page.open(tiny, verify=True).close()


def test_damaged_components_are_named_with_both_digests(tiny: Path) -> None:
    data = bytearray(tiny.read_bytes())
    data[-64] ^= 1
    tiny.write_bytes(data)
    with Page.open(tiny) as page:
        wanted = page.components[1].xxh3
        actual = xxhash.xxh3_64_intdigest(page.payload[64 : 64 + page.components[1].n_bytes])
    message = str(assert_refused(tiny, PageFileCorruptError))
    assert "layer 0 V" in message and f"{wanted:016x}" in message and f"{actual:016x}" in message


def test_payload_padding_is_checked_when_opened(tiny: Path) -> None:
    data = bytearray(tiny.read_bytes())
    data[-1] ^= 1
    tiny.write_bytes(data)
    with pytest.raises(PageFileCorruptError, match="padding after layer 0 V"):
        Page.open(tiny)


def test_truncation_at_every_length(tiny: Path) -> None:
    for n_bytes in range(tiny.stat().st_size - 1, -1, -1):
        os.truncate(tiny, n_bytes)
        with pytest.raises(PageFileTruncatedError) as caught:
            Page.open(tiny)
        assert f"has {n_bytes} bytes" in str(caught.value)


@pytest.mark.parametrize("n_extra", [1, 64, 4096])
def test_a_longer_file_is_refused(tiny: Path, n_extra: int) -> None:
    n_bytes = tiny.stat().st_size
    os.truncate(tiny, n_bytes + n_extra)
    message = str(assert_refused(tiny, PageFileTruncatedError))
    assert str(n_bytes) in message and str(n_bytes + n_extra) in message


@pytest.mark.parametrize("content", [b"x", b"GGUF", b"x" * 192, b"x" * 5000])
def test_other_files_are_not_page_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p"
    path.write_bytes(content)
    assert_refused(path, PageFileCorruptError)


@pytest.mark.parametrize("n_bytes", [0, 1, 8, 191, 192])
def test_short_files(tiny: Path, n_bytes: int) -> None:
    tiny.write_bytes(tiny.read_bytes()[:n_bytes])
    assert_refused(tiny, PageFileTruncatedError)


def test_a_text_transfer_is_noticed(tiny: Path) -> None:
    tiny.write_bytes(tiny.read_bytes().replace(b"\r\n", b"\n"))
    assert_refused(tiny, PageFileCorruptError)


# what is not a file


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "a directory" in str(assert_refused(tmp_path, PageFileNotRegularError))


@pytest.mark.timeout(20)
def test_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    assert "a FIFO" in str(assert_refused(path, PageFileNotRegularError))


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")
def test_a_device_is_refused() -> None:
    assert "a character device" in str(assert_refused(Path("/dev/zero"), PageFileNotRegularError))


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        assert "a socket" in str(assert_refused(Path("s"), PageFileNotRegularError))


def test_a_symlink_is_followed(tiny: Path) -> None:
    link = tiny.with_name("link")
    link.symlink_to(tiny)
    Page.open(link, verify=True).close()
    tiny.unlink()
    assert_refused(link, PageFileMissingError)


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "none"
    error = assert_refused(path, PageFileMissingError)
    assert isinstance(error, FileNotFoundError)
    assert (error.filename, error.errno) == (str(path), 2)
    path.write_bytes(b"")
    assert_refused(path / "below", PageFileMissingError)


# crafted files: the digest is right, so that only the checks of the numbers are left

FIELDS = {
    "header_bytes": (12, "<I"),
    "file_bytes": (16, "<Q"),
    "identity_offset": (24, "<Q"),
    "identity_bytes": (32, "<Q"),
    "tokens_offset": (40, "<Q"),
    "tokens_bytes": (48, "<Q"),
    "table_offset": (56, "<Q"),
    "table_bytes": (64, "<Q"),
    "payload_offset": (72, "<Q"),
    "payload_bytes": (80, "<Q"),
    "n_tokens": (92, "<I"),
    "n_components": (96, "<I"),
    "record_bytes": (100, "<I"),
}


def seal(data: bytearray) -> bytearray:
    """Make the digest right again, as far as the numbers allow."""
    (payload_offset,) = struct.unpack_from("<Q", data, 72)
    data[160:192] = bytes(32)
    data[160:192] = blake3.blake3(data[:payload_offset]).digest()
    return data


def crafted(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(seal(data))


def assert_refused_without_memory(path: Path, kind: type[PageFileError] = PageFileError) -> str:
    tracemalloc.start()
    try:
        error = assert_refused(path, kind)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    return str(error)


def test_a_sealed_file_is_sound(tiny: Path) -> None:
    crafted(tiny, lambda data: None)
    Page.open(tiny, verify=True).close()


@pytest.mark.parametrize("field", FIELDS)
def test_crafted_numbers(tiny: Path, field: str) -> None:
    offset, code = FIELDS[field]
    original = tiny.read_bytes()
    (value,) = struct.unpack_from(code, original, offset)
    top = (1 << 8 * struct.calcsize(code)) - 1
    for crafted_value in (0, 1, value - 1, value + 1, value + 8, value + 4096, top, top - 7, top >> 1, 1 << 31):
        if crafted_value in (value, top + 1):
            continue
        tiny.write_bytes(original)
        crafted(tiny, lambda data, new=crafted_value: struct.pack_into(code, data, offset, new))  # type: ignore[misc]
        assert_refused_without_memory(tiny)


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(
        st.sampled_from(sorted(FIELDS)), st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 8192)), min_size=1
    )
)
def test_crafted_combinations_of_numbers(values: dict[str, int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "p")
        tiny_page().write(path)
        original = path.read_bytes()
        data = bytearray(original)
        for field, value in values.items():
            offset, code = FIELDS[field]
            struct.pack_into(code, data, offset, value & ((1 << 8 * struct.calcsize(code)) - 1))
        if data[:160] != original[:160]:
            path.write_bytes(seal(data))
            assert_refused_without_memory(path)


@pytest.mark.parametrize("pos_begin", [-1, -(2**31), 2**31 - 3, 2**31 - 1])
def test_crafted_positions(tiny: Path, pos_begin: int) -> None:
    crafted(tiny, lambda data: struct.pack_into("<i", data, 88, pos_begin))
    assert "positions" in str(assert_refused(tiny, PageFileCorruptError))


def test_the_last_possible_position(tmp_path: Path) -> None:
    make_page(TINY, [1, 2, 3], pos_begin=2**31 - 4).write(tmp_path / "p")
    with Page.open(tmp_path / "p", verify=True) as page:
        assert page.pos_begin + page.n_tokens == 2**31 - 1


@pytest.mark.parametrize("version", [0, 2, 0xFFFF])
def test_other_format_versions(tiny: Path, version: int) -> None:
    crafted(tiny, lambda data: struct.pack_into("<H", data, 8, version))
    assert f"version {version}" in str(assert_refused(tiny, PageFileVersionError))


def test_the_abi_of_the_header_is_that_of_the_identity(tiny: Path) -> None:
    crafted(tiny, lambda data: struct.pack_into("<H", data, 10, 2))
    assert "ABI 2" in str(assert_refused(tiny, PageFileCorruptError))


def test_reserved_bytes_and_padding_are_zero(tiny: Path) -> None:
    original = tiny.read_bytes()
    page = tiny_page()
    identity_bytes, _, tokens_bytes = struct.unpack_from("<3Q", original, 32)
    plan = plan_file(identity_bytes, page.n_tokens, 2, page.payload_bytes)
    places = [*range(104, 160)]
    places += range(plan.identity_offset + identity_bytes, plan.tokens_offset)
    places += range(plan.tokens_offset + tokens_bytes, plan.table_offset)
    places += range(plan.table_offset + 112, plan.payload_offset, 97)
    for place in places:
        assert original[place] == 0
        data = bytearray(original)
        data[place] = 1
        tiny.write_bytes(seal(data))
        assert_refused(tiny, PageFileCorruptError)


RECORD_FIELDS: list[tuple[int, str, int, str]] = [
    (0, "<i", -1, "negative"),
    (4, "<i", 0, "kind 0"),
    (4, "<i", 3, "kind 3"),
    (4, "<i", 2, "twice"),
    (8, "<i", -1, "negative"),
    (8, "<i", 0, "f32"),
    (8, "<i", 8, "q8_0"),
    (12, "<I", 2, "transposed is 2"),
    (20, "<I", 0, "tokens"),
    (20, "<I", 2**32 - 1, "tokens"),
    (24, "<I", 0, "channels"),
    (24, "<I", 2**32 - 1, "values"),
    (28, "<I", 0, "channels"),
    (28, "<I", 2**32 - 1, "values"),
    (32, "<Q", 1, "begins at"),
    (32, "<Q", 64, "begins at"),
    (32, "<Q", 2**64 - 64, "begins at"),
    (40, "<Q", 0, "0 bytes"),
    (40, "<Q", 2**64 - 1, "bytes"),
]


@pytest.mark.parametrize(("offset", "code", "value", "word"), RECORD_FIELDS)
def test_crafted_component_records(tiny: Path, offset: int, code: str, value: int, word: str) -> None:
    def change(data: bytearray) -> None:
        (table_offset,) = struct.unpack_from("<Q", data, 56)
        struct.pack_into(code, data, table_offset + offset, value)

    crafted(tiny, change)
    assert word in assert_refused_without_memory(tiny, PageFileCorruptError)


def test_an_unknown_type_cannot_reach_behind_the_payload(tiny: Path) -> None:
    def change(data: bytearray) -> None:
        (table_offset,) = struct.unpack_from("<Q", data, 56)
        struct.pack_into("<i", data, table_offset + 8, UNKNOWN_TYPE)
        struct.pack_into("<I", data, table_offset + 28, 2**32 - 1)
        struct.pack_into("<Q", data, table_offset + 40, 3 * (2**32 - 1))

    crafted(tiny, change)
    assert "behind the payload" in assert_refused_without_memory(tiny, PageFileCorruptError)


def test_an_identity_with_an_unknown_field(tiny: Path) -> None:
    crafted(tiny, lambda data: data.__setitem__(slice(0, len(data)), data.replace(b'"namespace"', b'"namespaze"')))
    assert "namespaze" in str(assert_refused(tiny, PageFileCorruptError))


def test_an_identity_of_another_format(tiny: Path) -> None:
    crafted(tiny, lambda data: data.__setitem__(slice(0, len(data)), data.replace(b"native/1", b"native/9")))
    assert "native/9" in str(assert_refused(tiny, PageFileVersionError))


# writing


def _raise(error: BaseException) -> Callable[..., Any]:
    def raiser(*args: Any, **kwargs: Any) -> Any:
        raise error

    return raiser


@pytest.mark.parametrize("function", ["write", "fsync", "replace", "close"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("exists", [True, False])
def test_an_interrupted_write_changes_nothing(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, function: str, error: BaseException, exists: bool
) -> None:
    before = tiny.read_bytes()
    if not exists:
        tiny.unlink()
    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(os, function, _raise(error))
        tiny_page(seed=1).write(tiny)
    assert os.listdir(tiny.parent) == (["tiny.page"] if exists else [])
    if exists:
        assert tiny.read_bytes() == before


def test_a_write_that_fails_midway(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tiny.read_bytes()
    write = os.write
    n_calls = 0

    def failing(fd: int, data: Any) -> int:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 3:
            raise OSError(28, "No space left on device")
        return write(fd, memoryview(data)[:100])

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "write", failing)
        tiny_page(seed=1).write(tiny)
    assert os.listdir(tiny.parent) == ["tiny.page"]
    assert tiny.read_bytes() == before


def test_short_writes_are_continued(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tiny.read_bytes()
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data)[:7]))
        tiny_page().write(tiny)
    assert tiny.read_bytes() == before


@pytest.mark.parametrize("function", ["write", "fsync", "replace"])
def test_a_failed_write_names_the_file(tiny: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    with monkeypatch.context() as patch, pytest.raises(OSError) as caught:
        patch.setattr(os, function, _raise(OSError(28, "No space left on device")))
        tiny_page(seed=1).write(tiny)
    assert caught.value.filename == str(tiny) and str(tiny) in str(caught.value)


def test_a_write_of_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, "write", lambda fd, data: 0)
        tiny_page().write(tmp_path / "p")
    assert os.listdir(tmp_path) == []


def test_short_reads_are_continued(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n_bytes, offset: pread(fd, min(n_bytes, 7), offset))
    Page.open(tiny, verify=True).close()


def test_the_file_and_its_directory_are_synced_in_order(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recording_fsync(fd: int) -> None:
        calls.append("directory" if os.path.isdir(f"/proc/self/fd/{fd}") else "file")
        fsync(fd)

    def recording_replace(source: str, target: str) -> None:
        calls.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    tiny_page().write(tiny)
    assert calls == ["file", "replace", "directory"]


def test_an_open_page_survives_being_replaced(tiny: Path) -> None:
    with Page.open(tiny) as page:
        expected = bytes(page.payload)
        tiny_page(seed=1).write(tiny)
        assert bytes(page.payload) == expected
        page.verify()
        page.write(tiny)
    with Page.open(tiny, verify=True) as page:
        assert bytes(page.payload) == expected


def test_a_relative_and_a_long_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_page().write("p")
    tiny_page().write("n" * 255)
    assert sorted(os.listdir(tmp_path)) == ["n" * 255, "p"]


def test_a_missing_directory_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tiny_page().write(tmp_path / "none" / "p")


def test_only_files_are_replaced(tmp_path: Path) -> None:
    directory, fifo = tmp_path / "d", tmp_path / "fifo"
    directory.mkdir()
    os.mkfifo(fifo)
    for path in (directory, fifo):
        with pytest.raises(PageFileNotRegularError):
            tiny_page().write(path)
    assert sorted(os.listdir(tmp_path)) == ["d", "fifo"]


def test_a_link_is_replaced_and_its_target_stays(tiny: Path) -> None:
    link = tiny.with_name("link")
    link.symlink_to(tiny)
    before = tiny.read_bytes()
    tiny_page(seed=1).write(link)
    assert not link.is_symlink() and tiny.read_bytes() == before


@pytest.mark.parametrize(
    "tokens",
    [
        np.array([1, 2, 2**32 + 5]),
        np.array([1, 2, -(2**31) - 1]),
        np.array([1, 2, 2**31], dtype=np.uint32),
        [1, 2, 2**31],
        [1, 2, 2**70],
        [1.5, 2, 3],
        np.array([1.0, np.nan, 3.0]),
        ["1", "2", "3"],
    ],
    ids=range(8),
)
def test_tokens_are_never_wrapped_or_rounded(tokens: Any) -> None:
    page = tiny_page()
    with pytest.raises(ValueError, match="token"):
        Page(identity=IDENTITY, pos_begin=0, tokens=tokens, components=page.components, payload=page.payload)


def test_wide_tokens_that_fit_are_taken() -> None:
    page = tiny_page()
    several: list[Any] = [[1, -2, 2**31 - 1], np.array([1, -2, 2**31 - 1]), np.array([1, 2, 3], dtype=np.uint64)]
    for tokens in several:
        made = Page(identity=IDENTITY, pos_begin=0, tokens=tokens, components=page.components, payload=page.payload)
        assert made.tokens.dtype == np.int32 and list(made.tokens) == list(tokens)


def test_a_component_is_its_own_index() -> None:
    page = tiny_page()
    for i, component in enumerate(page.components):
        assert page.numpy(component).tobytes() == page.numpy(i).tobytes()
    with pytest.raises(ValueError):
        page.numpy(dataclasses.replace(page.components[0], layer=9))
    with pytest.raises(IndexError):
        page.numpy(2)


def test_tokens_are_a_view() -> None:
    tokens: NDArray[np.int32] = np.array([1, 2, 3], dtype=np.int32)
    page = tiny_page()
    view = Page(identity=IDENTITY, pos_begin=0, tokens=tokens, components=page.components, payload=page.payload).tokens
    assert np.shares_memory(view, tokens) and tokens.flags.writeable and not view.flags.writeable
