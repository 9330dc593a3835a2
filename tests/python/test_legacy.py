"""LCG1, LCG2 and CKG1 in libcachegen against the numpy reference: bytes, values and refusals."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from codec_cases import TYPES, damaged_copies, isa, kv_like, load, native_rows, store  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cachegen.codec import CodecError, Plane
from llama_cachegen.codec.legacy import (
    Ckg1Archive,
    Ckg1Kind,
    Ckg1Part,
    decode_tile,
    describe_tile,
    encode_ckg1,
    encode_tile,
)
from llama_cachegen.codec.reference import ckg1 as reference_ckg1
from llama_cachegen.codec.reference import tiles as reference_tiles
from llama_cachegen.codec.reference.stores import store_rows
from llama_cachegen.ggml_types import GgmlType
from numpy.typing import NDArray

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "lmcache"
BINS = (16, 32)
VERSIONS = (1, 2)


def f16_plane(values: NDArray[np.float32]) -> Plane:
    return Plane(native_rows(values, GgmlType.F16), GgmlType.F16, values.shape[1])


def as_f32(plane: Plane) -> NDArray[np.float32]:
    return load(plane, plane.data.shape[0])


def outcome(call: Callable[[], object]) -> object:
    """What a call gives: its value, or the status of its refusal."""
    try:
        return call()
    except CodecError as error:
        return error.status_name


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("bins", BINS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 33), (7, 5), (8, 32), (255, 64), (256, 40), (19, 257)])
def test_tile_bytes_and_values(isa: str, shape: tuple[int, int], bins: int, version: int) -> None:  # noqa: F811
    rng = np.random.default_rng(shape[0] * 1000 + shape[1])
    source = f16_plane(kv_like(rng, *shape))
    source.data[shape[0] // 2] = 0  # a row of zeros
    tile = encode_tile(source, bins, version)
    assert tile == reference_tiles.encode_tile(as_f32(source), bins, version)
    info = describe_tile(tile)
    assert (info.version, info.n_bins, info.n_tokens, info.n_channels) == (version, bins, *shape)
    out = np.zeros((shape[0], 2 * shape[1]), np.uint8)
    decode_tile(tile, Plane(out, GgmlType.F16, shape[1]))
    assert np.array_equal(out.view(np.float16).view(np.uint16), reference_tiles.decode_tile(tile).view(np.uint16))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("type_", "transposed"),
    [(type_, False) for type_ in TYPES] + [(type_, True) for type_ in TYPES if type_.block_size == 1],
)
def test_tile_into_every_type(isa: str, type_: GgmlType, transposed: bool, version: int) -> None:  # noqa: F811
    rng = np.random.default_rng(7)
    tile = encode_tile(f16_plane(kv_like(rng, 45, 96)), 32, version)
    values = reference_tiles.decode_tile(tile).astype(np.float32)
    cells = rng.permutation(70)[:50].astype(np.uint32)
    size = type_.block_bytes
    shape = (96, 70 * size) if transposed else (70, type_.row_bytes(96))
    out = np.full(shape, 0xA5, np.uint8)
    decode_tile(tile, Plane(out, type_, 96, transposed=transposed, cells=cells), first_token=5)
    rows = out.reshape(96, 70, size).transpose(1, 0, 2).reshape(70, -1) if transposed else out
    expected = np.full(rows.shape, 0xA5, np.uint8)
    expected[cells[5:]] = store_rows(values, type_)
    assert np.array_equal(rows, expected)


@pytest.mark.parametrize("name", ["a_l4_t32_c64_f16", "c_l4_t32_c64_f32", "f_l2_t1_c24_f16"])
def test_lcg1_holds_what_lmcache_writes(name: str) -> None:
    """Tables and streams of a tile are LMCache's own, where it codes the same tokens in one call without zero rows."""
    folder = GOLDEN / name
    values = np.load(folder / "input.npy")  # [L, 2, T, H, D]
    cdf = np.load(folder / "cdf.npy")
    lengths = np.load(folder / "lengths_0.npy")
    stream = np.load(folder / "stream_0.npy")
    n_layers, _, n_tokens = values.shape[:3]
    ends = np.cumsum(lengths.astype(np.int64).ravel()).reshape(lengths.shape)
    for layer in range(n_layers):
        for kind in (0, 1):
            rows = np.ascontiguousarray(values[layer, kind].reshape(n_tokens, -1).astype(np.float32))
            n_channels = rows.shape[1]
            plane = kind * n_layers + layer
            tile = encode_tile(Plane(rows, GgmlType.F32, n_channels), 32, 1)
            at = 16 + 4 * n_tokens
            assert tile[at : at + 66 * n_channels] == cdf[plane].astype("<u2").tobytes()
            at += 66 * n_channels
            assert tile[at : at + 2 * n_channels] == lengths[plane].astype("<u2").tobytes()
            at += 2 * n_channels
            assert tile[at:] == stream[ends[plane, 0] - lengths[plane, 0] : ends[plane, -1]].tobytes()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_flip_and_truncation_of_a_tile(version: int) -> None:
    rng = np.random.default_rng(3)
    tile = encode_tile(f16_plane(kv_like(rng, 5, 3)), 16, version)

    def native(data: bytes) -> object:
        out = np.zeros((256, 6), np.uint8)
        decode_tile(data, Plane(out, GgmlType.F16, 3))
        return out.tobytes()

    def reference(data: bytes) -> object:
        values = reference_tiles.decode_tile(data)
        if values.shape[1] != 3:
            return "ERR_MISMATCH"
        return values.tobytes() + bytes(6 * (256 - len(values)))

    damaged = damaged_copies(tile)
    results = [(outcome(lambda d=data: native(d)), outcome(lambda d=data: reference(d))) for data in damaged]
    assert [a for a, _ in results] == [b for _, b in results]
    assert {"ERR_MAGIC", "ERR_TRUNCATED", "ERR_TRAILING", "ERR_GEOMETRY", "ERR_TABLE"} <= {
        a for a, _ in results if isinstance(a, str)
    }


def page_parts(rng: np.random.Generator, n_tokens: int) -> tuple[list[Ckg1Part], bytes]:
    """A page with every kind of record: K rows, V transposed, blocks, and exact bytes; and its native bytes."""
    parts: list[Ckg1Part] = []
    page = b""
    for kind, type_, transposed, n_channels in (
        (Ckg1Kind.F16_ROWS, GgmlType.F16, False, 64),
        (Ckg1Kind.Q8_0_ROWS, GgmlType.Q8_0, False, 64),
        (Ckg1Kind.Q4_0_ROWS, GgmlType.Q4_0, False, 32),
        (Ckg1Kind.F32_ROWS, GgmlType.F32, False, 7),
        (Ckg1Kind.F16_TRANSPOSED, GgmlType.F16, True, 33),
        (Ckg1Kind.F32_TRANSPOSED, GgmlType.F32, True, 8),
    ):
        rows = native_rows(kv_like(rng, n_tokens, n_channels), type_)
        if transposed:
            size = type_.block_bytes
            rows = rows.reshape(n_tokens, n_channels, size).transpose(1, 0, 2).reshape(n_channels, -1).copy()
        parts.append(
            Ckg1Part(kind, Plane(rows, type_, n_channels, transposed=transposed), n_bins=16 if transposed else 32)
        )
        page += rows.tobytes()
    exact = rng.bytes(77)
    return [*parts, Ckg1Part(Ckg1Kind.EXACT, exact)], page + exact


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("n_tokens", [1, 256, 300, 777])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_archive_of_every_kind(isa: str, n_tokens: int, version: int, n_threads: int) -> None:  # noqa: F811
    parts, page = page_parts(np.random.default_rng(n_tokens), n_tokens)
    archive = encode_ckg1(parts, version=version, n_threads=n_threads)
    expected = reference_ckg1.read_ckg1(archive)
    with Ckg1Archive(archive) as reader:
        assert reader.page_bytes == len(page)
        assert [
            (int(r.kind), r.output_offset, r.decoded_bytes, r.n_tokens, r.payload_bytes) for r in reader.records
        ] == [(int(r.kind), r.offset, r.n_bytes, r.n_tokens, len(r.payload)) for r in expected]
        for record, other in zip(reader.records, expected, strict=True):
            assert archive[record.payload_offset :][: record.payload_bytes] == other.payload
            assert record.tile_version == (0 if record.kind is Ckg1Kind.EXACT else version)
        decoded = reader.decode(n_threads=n_threads).tobytes()
    assert decoded == reference_ckg1.decode_ckg1(archive)
    assert decoded[-77:] == page[-77:] and decoded != page


def test_lcg2_decodes_to_what_lcg1_does() -> None:
    parts, _ = page_parts(np.random.default_rng(5), 300)
    pages = []
    for version in VERSIONS:
        with Ckg1Archive(encode_ckg1(parts, version=version)) as reader:
            pages.append(reader.decode().tobytes())
    assert pages[0] == pages[1]


def small_archive() -> bytes:
    rng = np.random.default_rng(11)
    values = kv_like(rng, 3, 2)
    rows = native_rows(values, GgmlType.F16)
    slab = rows.view(np.uint16).T.copy()
    return encode_ckg1(
        [
            Ckg1Part(Ckg1Kind.F16_ROWS, Plane(rows, GgmlType.F16, 2)),
            Ckg1Part(Ckg1Kind.F16_TRANSPOSED, Plane(slab, GgmlType.F16, 2, transposed=True), n_bins=16),
            Ckg1Part(Ckg1Kind.EXACT, b"exact"),
        ]
    )


def native_page(data: bytes) -> object:
    with Ckg1Archive(data) as reader:
        return reader.decode().tobytes() if reader.page_bytes < 1 << 20 else "large"


def reference_page(data: bytes) -> object:
    return reference_ckg1.decode_ckg1(data)


def test_every_flip_and_truncation_of_an_archive() -> None:
    archive = small_archive()
    damaged = damaged_copies(archive)
    natives = [outcome(lambda d=data: native_page(d)) for data in damaged]
    references = [outcome(lambda d=data: reference_page(d)) for data in damaged]
    assert natives == references
    assert {"ERR_MAGIC", "ERR_TRUNCATED", "ERR_TRAILING", "ERR_GEOMETRY", "ERR_COVERAGE", "ERR_RESERVED"} <= {
        n for n in natives if isinstance(n, str)
    }


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_hostile_numbers_in_an_archive(data: st.DataObject) -> None:
    """Header fields of records set to numbers that would overflow or cover too much or too little."""
    archive = bytearray(small_archive())
    offsets = [16]
    for _ in range(2):
        (size,) = struct.unpack_from("<Q", archive, offsets[-1] + 44)
        offsets.append(offsets[-1] + 52 + size)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(offsets)) + data.draw(st.sampled_from([4, 12, 20, 28, 36, 44]))
        (old,) = struct.unpack_from("<Q", archive, at)
        number = data.draw(
            st.one_of(
                st.sampled_from([0, 1, 2**32, 2**63, 2**64 - 1, 2**64 - 4]),
                st.integers(-3, 3).map(lambda d, old=old: (old + d) % 2**64),
            )
        )
        struct.pack_into("<Q", archive, at, number)
    assert outcome(lambda: native_page(bytes(archive))) == outcome(lambda: reference_page(bytes(archive)))


def test_wrong_calls() -> None:
    tile = encode_tile(f16_plane(np.ones((4, 2), np.float32)), 16, 2)
    out = np.zeros((4, 4), np.uint8)
    with pytest.raises(CodecError, match="ERR_MISMATCH"):
        decode_tile(tile, Plane(np.zeros((4, 6), np.uint8), GgmlType.F16, 3))
    with pytest.raises(CodecError, match="ERR_MISMATCH"):
        decode_tile(tile, Plane(out, GgmlType.F16, 2), first_token=1)
    for n_bins, version in ((8, 1), (16, 0), (32, 3)):
        with pytest.raises(CodecError, match="ERR_ARGUMENT"):
            encode_tile(f16_plane(np.ones((4, 2), np.float32)), n_bins, version)
    with pytest.raises(CodecError, match="ERR_ARGUMENT"):
        encode_tile(f16_plane(np.ones((257, 2), np.float32)), 16, 2)
    with pytest.raises(CodecError, match="ERR_NON_FINITE"):
        encode_tile(Plane(np.full((1, 1), 65520, np.float32), GgmlType.F32, 1), 16, 2)
    with pytest.raises(CodecError, match="ERR_ARGUMENT"):
        encode_ckg1([])
    with pytest.raises(CodecError, match="ERR_ARGUMENT"):
        encode_ckg1([Ckg1Part(Ckg1Kind.F32_ROWS, f16_plane(np.ones((4, 2), np.float32)))])
    with Ckg1Archive(small_archive()) as reader:
        pass
    with pytest.raises(ValueError, match="closed"):
        reader.decode()
