"""LCG1, LCG2 and CKG1 in libcachegen against the numpy reference: bytes, values and refusals."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from codec_cases import (
    TYPES,
    as_rows,
    damaged_copies,
    implementation,
    isa,  # noqa: F401
    kv_like,
    native_rows,
    transposed_rows,
)
from format_examples import example, example_values
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
from llama_cachegen.codec.reference.stores import load_rows, store_rows
from llama_cachegen.ggml_types import GgmlType
from numpy.typing import NDArray
from parity import ORACLE, Cell, Parity

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "lmcache"
BINS = (16, 32)
VERSIONS = (1, 2)
LAYOUTS = [(type_, False) for type_ in TYPES] + [(type_, True) for type_ in TYPES if type_.block_size == 1]


def f16_plane(values: NDArray[np.float32]) -> Plane:
    return Plane(native_rows(values, GgmlType.F16), GgmlType.F16, values.shape[1])


def outcome(call: Callable[[], object]) -> object:
    """What a call gives: its value, or the status of its refusal."""
    try:
        return call()
    except CodecError as error:
        return error.status_name


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("bins", BINS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 33), (7, 5), (8, 32), (255, 64), (256, 40), (19, 257)])
def test_tile_bytes_and_values(
    parity: Parity,
    isa: str,  # noqa: F811
    shape: tuple[int, int],
    bins: int,
    version: int,
) -> None:
    cell = Cell(f"LCG{version}", GgmlType.F16)
    rng = np.random.default_rng(shape[0] * 1000 + shape[1])
    source = f16_plane(kv_like(rng, *shape))
    source.data[shape[0] // 2] = 0  # a row of zeros
    tile = encode_tile(source, bins, version)
    expected = reference_tiles.encode_tile(load_rows(source.data, source.type), bins, version)
    parity.same(cell, implementation(), ORACLE, tile, expected)
    info = describe_tile(tile)
    assert (info.version, info.n_bins, info.n_tokens, info.n_channels) == (version, bins, *shape)
    out = np.zeros((shape[0], 2 * shape[1]), np.uint8)
    decode_tile(tile, Plane(out, GgmlType.F16, shape[1]))
    parity.same(cell, implementation(), ORACLE, out, reference_tiles.decode_tile(tile))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("type_", "transposed"), LAYOUTS)
def test_tile_from_and_into_every_type(
    parity: Parity,
    isa: str,  # noqa: F811
    type_: GgmlType,
    transposed: bool,
    version: int,
) -> None:
    rng = np.random.default_rng(7)
    cell = Cell(f"LCG{version}", type_, transposed)
    rows = store_rows(kv_like(rng, 45, 96), type_)
    source = Plane(transposed_rows(rows, type_) if transposed else rows, type_, 96, transposed=transposed)
    tile = encode_tile(source, 32, version)
    parity.same(cell, implementation(), ORACLE, tile, reference_tiles.encode_tile(load_rows(rows, type_), 32, version))

    values = reference_tiles.decode_tile(tile).astype(np.float32)
    cells = rng.permutation(70)[:50].astype(np.uint32)
    shape = (96, 70 * type_.block_bytes) if transposed else (70, type_.row_bytes(96))
    out = Plane(np.full(shape, 0xA5, np.uint8), type_, 96, transposed=transposed, cells=cells)
    decode_tile(tile, out, first_token=5)
    expected = np.full((70, type_.row_bytes(96)), 0xA5, np.uint8)
    expected[cells[5:]] = store_rows(values, type_)
    assert as_rows(out).shape == expected.shape
    parity.same(cell, implementation(), ORACLE, as_rows(out), expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_page_example_of_a_tile(parity: Parity, isa: str, version: int) -> None:  # noqa: F811
    page = f"lcg{version}"
    expected = example_values(page)
    out = np.zeros_like(expected)
    decode_tile(example(page), Plane(out, GgmlType.F16, expected.shape[1]))
    parity.same(Cell(page.upper(), GgmlType.F16), implementation(), "format page", out, expected)


def test_page_example_of_an_archive(parity: Parity, isa: str) -> None:  # noqa: F811
    with Ckg1Archive(example("ckg1")) as reader:
        page = reader.decode().tobytes()
    expected = example("ckg1", "page")
    assert page == expected
    for transposed, begin, end in ((False, 0, 8), (True, 8, 16)):
        cell = Cell("CKG1", GgmlType.F16, transposed)
        parity.same(cell, implementation(), "format page", page[begin:end], expected[begin:end])


@pytest.mark.parametrize("name", ["a_l4_t32_c64_f16", "c_l4_t32_c64_f32", "f_l2_t1_c24_f16"])
def test_lcg1_holds_what_lmcache_writes(parity: Parity, isa: str, name: str) -> None:  # noqa: F811
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
            theirs = [
                cdf[plane].astype("<u2").tobytes(),
                lengths[plane].astype("<u2").tobytes(),
                stream[ends[plane, 0] - lengths[plane, 0] : ends[plane, -1]].tobytes(),
            ]
            after_maxima = tile[16 + 4 * n_tokens :]
            parity.same(Cell("LCG1", GgmlType.F32), implementation(), "LMCache", after_maxima, b"".join(theirs))


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


PAGE_PARTS = (
    (Ckg1Kind.F16_ROWS, GgmlType.F16, False, 64),
    (Ckg1Kind.Q8_0_ROWS, GgmlType.Q8_0, False, 64),
    (Ckg1Kind.Q4_0_ROWS, GgmlType.Q4_0, False, 32),
    (Ckg1Kind.F32_ROWS, GgmlType.F32, False, 7),
    (Ckg1Kind.F16_TRANSPOSED, GgmlType.F16, True, 33),
    (Ckg1Kind.F32_TRANSPOSED, GgmlType.F32, True, 8),
)
CELL_OF_KIND = {kind: Cell("CKG1", type_, transposed) for kind, type_, transposed, _ in PAGE_PARTS}


def page_parts(rng: np.random.Generator, n_tokens: int) -> tuple[list[Ckg1Part], bytes]:
    """A page with every kind of record: K rows, V transposed, blocks, and exact bytes; and its native bytes."""
    parts: list[Ckg1Part] = []
    page = b""
    for kind, type_, transposed, n_channels in PAGE_PARTS:
        rows = store_rows(kv_like(rng, n_tokens, n_channels), type_)
        if transposed:
            rows = transposed_rows(rows, type_)
        parts.append(
            Ckg1Part(kind, Plane(rows, type_, n_channels, transposed=transposed), n_bins=16 if transposed else 32)
        )
        page += rows.tobytes()
    exact = rng.bytes(77)
    return [*parts, Ckg1Part(Ckg1Kind.EXACT, exact)], page + exact


@functools.cache
def page_by_numpy(n_tokens: int, version: int) -> tuple[bytes, bytes]:
    """The archive that numpy makes of `page_parts`, and its page: slow, and the same for every instruction set."""
    parts, _ = page_parts(np.random.default_rng(n_tokens), n_tokens)
    archive = reference_ckg1.encode_ckg1(
        [
            reference_ckg1.Ckg1Part(
                reference_ckg1.Ckg1Kind(part.kind),
                load_rows(as_rows(part.content), part.content.type)
                if isinstance(part.content, Plane)
                else part.content,
                part.n_bins,
            )
            for part in parts
        ],
        version=version,
    )
    return archive, reference_ckg1.decode_ckg1(archive)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("n_tokens", [1, 256, 300, 777])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_archive_of_every_kind(
    parity: Parity,
    isa: str,  # noqa: F811
    n_tokens: int,
    version: int,
    n_threads: int,
) -> None:
    parts, page = page_parts(np.random.default_rng(n_tokens), n_tokens)
    archive = encode_ckg1(parts, version=version, n_threads=n_threads)
    numpys_archive, numpys_page = page_by_numpy(n_tokens, version)
    expected = reference_ckg1.read_ckg1(numpys_archive)
    with Ckg1Archive(archive) as reader:
        assert reader.page_bytes == len(page)
        assert [
            (int(r.kind), r.output_offset, r.decoded_bytes, r.n_tokens, r.payload_bytes) for r in reader.records
        ] == [(int(r.kind), r.offset, r.n_bytes, r.n_tokens, len(r.payload)) for r in expected]
        for record, other in zip(reader.records, expected, strict=True):
            payload = archive[record.payload_offset :][: record.payload_bytes]
            if record.kind is Ckg1Kind.EXACT:
                assert record.tile_version == 0 and payload == other.payload
            else:
                assert record.tile_version == version
                parity.same(CELL_OF_KIND[record.kind], implementation(), ORACLE, payload, other.payload)
        decoded = reader.decode(n_threads=n_threads).tobytes()
    assert archive == numpys_archive
    begin = 0
    for part in parts:
        if isinstance(part.content, Plane):
            end = begin + part.content.data.nbytes
            cell = CELL_OF_KIND[part.kind]
            parity.same(cell, implementation(), ORACLE, decoded[begin:end], numpys_page[begin:end])
            begin = end
    assert decoded == numpys_page
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
