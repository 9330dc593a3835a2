"""The numpy readers of LCG1, LCG2 and CKG1: worked examples, LMCache's own streams, round trips, damage, coverage."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cachegen
import numpy as np
import pytest
from format_examples import example, example_values
from llama_cachegen.codec.errors import ArchiveError, EncodeError
from llama_cachegen.codec.reference.ckg1 import (
    Ckg1Kind,
    Ckg1Part,
    Ckg1Record,
    decode_ckg1,
    encode_ckg1,
    read_ckg1,
    write_ckg1,
)
from llama_cachegen.codec.reference.quantizer import widen
from llama_cachegen.codec.reference.stores import load_rows, store_rows
from llama_cachegen.codec.reference.tiles import decode_tile, encode_tile, read_tile_header
from llama_cachegen.errors import CachegenError
from llama_cachegen.ggml_types import GgmlType
from parity import ORACLE, Cell, Parity

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "lmcache"
TILE = np.array([[1.0, -0.5], [0.0, 0.0]], dtype=np.float32)
TRANSPOSED = np.array([[2.0, 1.0], [-0.25, 4.0]], dtype=np.float32)
TYPED_KINDS = [kind for kind in Ckg1Kind if kind is not Ckg1Kind.EXACT]
TYPES = {"F16": GgmlType.F16, "F32": GgmlType.F32, "Q8_0": GgmlType.Q8_0, "Q4_0": GgmlType.Q4_0}


def random_tile(seed: int, n_tokens: int, n_channels: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 1, (n_tokens, n_channels)) * np.exp(rng.normal(0, 1, n_channels))
    return values.astype(np.float16).astype(np.float32)


def status_of(function: Callable[[bytes], Any], data: bytes) -> str:
    with pytest.raises(ArchiveError) as caught:
        function(data)
    return caught.value.status_name


def patched(data: bytes, offset: int, form: str, *numbers: float) -> bytes:
    out = bytearray(data)
    struct.pack_into("<" + form, out, offset, *numbers)
    return bytes(out)


def outcomes(function: Callable[[bytes], Any], damaged: list[bytes]) -> tuple[int, int]:
    """How many were refused and how many gave values; any other exception passes through."""
    refused = 0
    for data in damaged:
        try:
            function(data)
        except ArchiveError:
            refused += 1
    return refused, len(damaged) - refused


def all_flips(data: bytes) -> list[bytes]:
    """Every bit flipped, and every byte inverted."""
    masks = [*(1 << bit for bit in range(8)), 0xFF]
    return [data[:i] + bytes([data[i] ^ mask]) + data[i + 1 :] for i in range(len(data)) for mask in masks]


# the format pages


@pytest.mark.parametrize(("page", "bins", "version"), [("lcg1", 16, 1), ("lcg2", 32, 2)])
def test_page_example_of_a_tile(parity: Parity, page: str, bins: int, version: int) -> None:
    data = example(page)
    decoded, expected = decode_tile(data), example_values(page)
    assert (decoded.dtype, decoded.shape) == (expected.dtype, expected.shape)
    parity.same(Cell(f"LCG{version}", GgmlType.F16), ORACLE, "format page", decoded, expected)
    assert read_tile_header(data)[:4] == (version, bins, 2, 2)
    parity.same(Cell(f"LCG{version}", GgmlType.F32), ORACLE, "format page", encode_tile(TILE, bins, version), data)


def test_page_example_of_an_archive(parity: Parity) -> None:
    data = example("ckg1")
    page, expected = decode_ckg1(data), example("ckg1", "page")
    assert page == expected
    for transposed, begin, end in ((False, 0, 8), (True, 8, 16)):
        parity.same(Cell("CKG1", GgmlType.F16, transposed), ORACLE, "format page", page[begin:end], expected[begin:end])
    assert data == encode_ckg1(
        [
            Ckg1Part(Ckg1Kind.F16_ROWS, TILE, 32),
            Ckg1Part(Ckg1Kind.F16_TRANSPOSED, TRANSPOSED, 16),
            Ckg1Part(Ckg1Kind.EXACT, b"\xab\xcd"),
        ]
    )
    fields = [(r.kind, r.offset, r.n_bytes, r.n_channels) for r in read_ckg1(data)]
    assert fields == [(0, 0, 8, 2), (2, 8, 8, 2), (1, 16, 2, 0)]


# tiles


@pytest.mark.parametrize("name", ["a_l4_t32_c64_f16", "b_l4_t32_c64_bf16", "c_l4_t32_c64_f32", "f_l2_t1_c24_f16"])
def test_lcg1_has_the_streams_of_lmcache(parity: Parity, name: str) -> None:
    stored = {path.stem: np.load(path) for path in (GOLDEN / name).glob("*.npy")}
    kv = widen(stored["input"])
    n_layers, _, n_tokens = kv.shape[:3]
    planes = np.concatenate([kv[:, 0], kv[:, 1]]).reshape(2 * n_layers, n_tokens, -1)
    decoded = np.concatenate([stored["decoded"][:, 0], stored["decoded"][:, 1]]).reshape(planes.shape)
    maxima = widen(np.concatenate([stored["max_key"], stored["max_value"]])[..., 0])
    n_channels = planes.shape[2]
    begin = 0
    for plane, values in enumerate(planes):
        lengths = stored["lengths_0"][plane]
        end = begin + int(lengths.sum())
        expected = b"".join(
            [
                struct.pack("<4sBBHII", b"LCG1", 32, 0, n_tokens, n_channels, end - begin),
                maxima[plane].astype("<f4").tobytes(),
                stored["cdf"][plane].astype("<u2").tobytes(),
                lengths.astype("<u2").tobytes(),
                stored["stream_0"][begin:end].tobytes(),
            ]
        )
        parity.same(Cell("LCG1", GgmlType.F32), ORACLE, "LMCache", encode_tile(values, 32, 1), expected)
        for version in (1, 2):
            got = decode_tile(encode_tile(values, 32, version))
            if decoded.dtype != np.uint16:  # bfloat16 is rounded otherwise
                np.testing.assert_array_equal(got, decoded[plane].astype(np.float16))
            symbols = np.rint(got / np.where(maxima[plane] > 0, maxima[plane], 1)[:, np.newaxis] * 15) + 15
            np.testing.assert_array_equal(symbols, stored["symbols"][plane])
        begin = end
    assert begin == stored["stream_0"].size


@pytest.mark.parametrize("bins", [16, 32])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (17, 5), (256, 8), (255, 33), (3, 1000)])
def test_both_tiles_decode_to_the_same_near_values(shape: tuple[int, int], bins: int) -> None:
    values = random_tile(sum(shape) + bins, *shape)
    values[shape[0] // 2] *= shape[0] == 17  # a row of zeros
    first, second = (decode_tile(encode_tile(values, bins, version)) for version in (1, 2))
    assert first.dtype == np.float16 and first.shape == shape
    np.testing.assert_array_equal(first.view(np.uint16), second.view(np.uint16))
    largest = np.abs(values).max(axis=1, keepdims=True)
    assert (np.abs(first - values) <= largest * (0.5 / (bins // 2 - 1) + 1e-3)).all()
    assert encode_tile(values, bins, 1) == encode_tile(values, bins, 1)


def test_rows_of_zeros_and_of_tiny_values() -> None:
    values = np.array([[0.0, -0.0], [1e-39, -1e-39], [0.0, 1e-44], [1.0, -1.0]], dtype=np.float32)
    data = encode_tile(values, 16, 2)
    assert data[32:].hex() == "770ee70e"  # symbols 7 7, 14 0, 7 14, 14 0
    decoded = decode_tile(data)
    np.testing.assert_array_equal(decoded, [[0, 0], [0, 0], [0, 0], [1, -1]])
    assert not np.signbit(decoded[0]).any()
    np.testing.assert_array_equal(decode_tile(encode_tile(values, 16, 1)).view(np.uint16), decoded.view(np.uint16))


def test_random_symbols_over_the_whole_alphabet_round_trip() -> None:
    rng = np.random.default_rng(5)
    for bins in (16, 32):
        levels = rng.integers(-(bins // 2 - 1), bins // 2, (256, 40)).astype(np.float32)
        levels[:, 0] = bins // 2 - 1
        for version in (1, 2):
            np.testing.assert_array_equal(decode_tile(encode_tile(levels, bins, version)), levels)


@pytest.mark.parametrize(
    ("values", "bins", "version", "status"),
    [
        (TILE.astype(np.float64), 16, 1, "ERR_ARGUMENT"),
        (TILE[0], 16, 1, "ERR_ARGUMENT"),
        (np.zeros((0, 2), np.float32), 16, 1, "ERR_ARGUMENT"),
        (np.zeros((257, 2), np.float32), 16, 1, "ERR_ARGUMENT"),
        (np.zeros((2, 0), np.float32), 16, 1, "ERR_ARGUMENT"),
        (TILE, 24, 1, "ERR_ARGUMENT"),
        (TILE, 16, 3, "ERR_ARGUMENT"),
        (np.broadcast_to(np.float32(0), (256, 65537)), 16, 2, "ERR_LIMIT"),
        (np.array([[1, np.nan]], np.float32), 16, 1, "ERR_NON_FINITE"),
        (np.array([[1, -np.inf]], np.float32), 32, 2, "ERR_NON_FINITE"),
        (np.array([[1, -65520]], np.float32), 32, 2, "ERR_NON_FINITE"),
    ],
)
def test_what_is_no_tile_is_not_encoded(values: np.ndarray, bins: int, version: int, status: str) -> None:
    with pytest.raises(EncodeError) as caught:
        encode_tile(values, bins, version)
    assert caught.value.status_name == status


LCG1 = encode_tile(TILE, 16, 1)
LCG2 = encode_tile(TILE, 32, 2)
ALL_SYMBOLS_15 = [*range(16), *range(65519, 65536)]  # nearly all of the range is symbol 15


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", "ERR_TRUNCATED"),
        (b"LCG", "ERR_TRUNCATED"),
        (b"LCG3", "ERR_MAGIC"),
        (b"CKG1" + LCG1[4:], "ERR_MAGIC"),
        (LCG1[:15], "ERR_TRUNCATED"),
        (patched(LCG1, 4, "B", 24), "ERR_GEOMETRY"),
        (patched(LCG1, 5, "B", 4), "ERR_RESERVED"),
        (patched(LCG2, 5, "B", 4), "ERR_GEOMETRY"),
        (patched(LCG2, 5, "B", 0), "ERR_GEOMETRY"),
        (patched(LCG2, 4, "BB", 16, 5), "ERR_GEOMETRY"),
        (patched(LCG1, 6, "H", 0), "ERR_GEOMETRY"),
        (patched(LCG1, 6, "H", 257), "ERR_GEOMETRY"),
        (patched(LCG1, 8, "I", 0), "ERR_GEOMETRY"),
        (patched(LCG1, 8, "I", 1 << 23), "ERR_TRUNCATED"),
        (patched(LCG1, 8, "I", (1 << 23) + 1), "ERR_LIMIT"),
        (patched(LCG2, 8, "I", (1 << 32) - 1), "ERR_LIMIT"),
        (patched(LCG1, 12, "I", 1), "ERR_TRAILING"),
        (patched(LCG1, 12, "I", 3), "ERR_TRUNCATED"),
        (patched(LCG1, 12, "I", 3) + b"\0", "ERR_GEOMETRY"),
        (patched(LCG2, 12, "I", 4), "ERR_GEOMETRY"),
        (LCG2[:-1], "ERR_TRUNCATED"),
        (LCG2 + b"\0", "ERR_TRAILING"),
        *((patched(data, 20, "f", bad), "ERR_TABLE") for data in (LCG1, LCG2) for bad in
          (np.nan, np.inf, -np.inf, -1.0, -0.0, 65520.0, 3e38)),
        (patched(LCG1, 24, "H", 1), "ERR_TABLE"),
        (patched(LCG1, 24 + 64, "H", 65534), "ERR_TABLE"),
        (patched(LCG1, 24 + 66 + 10, "H", 4), "ERR_TABLE"),
        (patched(LCG1, 156, "HH", 0, 2), "ERR_GEOMETRY"),
        (patched(LCG1, 156, "HH", 1, 257), "ERR_GEOMETRY"),
        (patched(LCG1, 156, "HH", 1, 2), "ERR_GEOMETRY"),
        (patched(patched(LCG1, 12, "I", 258), 156, "HH", 1, 257) + bytes(256), "ERR_GEOMETRY"),
        (patched(LCG1, 24, "66H", *ALL_SYMBOLS_15, *ALL_SYMBOLS_15), "ERR_STREAM"),
        (patched(LCG2, 24, "BBB", 0xFF, 0xFF, 0x0F), "ERR_STREAM"),
        (patched(LCG2, 26, "B", 0x17), "ERR_RESERVED"),
    ],
)  # fmt: skip
def test_every_rule_of_a_tile(data: bytes, status: str) -> None:
    assert status_of(decode_tile, data) == status


def test_the_largest_maximum_and_the_longest_stream_are_taken() -> None:
    assert decode_tile(patched(LCG2, 16, "f", 65519.0))[0, 0] == 65504
    longest = patched(patched(LCG1, 12, "I", 257), 156, "HH", 1, 256) + b"\xff" * 255
    np.testing.assert_array_equal(decode_tile(longest), decode_tile(LCG1))


@pytest.mark.parametrize("data", [LCG1, LCG2, encode_tile(random_tile(1, 9, 3), 32, 1)], ids=["lcg1", "lcg2", "random"])
def test_damaged_tiles_are_refused_or_give_finite_values(data: bytes) -> None:
    def decode(damaged: bytes) -> None:
        assert np.isfinite(decode_tile(damaged)).all()

    refused, accepted = outcomes(decode, all_flips(data))
    assert refused > 16 * 9 * 0.9 and accepted > 0
    assert outcomes(decode, [data[:n] for n in range(len(data))]) == (len(data), 0)
    assert outcomes(decode, [data + b"\0", data + data]) == (2, 0)


# native rows


def ggml_rows(values: np.ndarray, type_: GgmlType) -> np.ndarray:
    path = Path(llama_cachegen.__file__).parent / "lib" / "libggml-base.so"
    if not path.exists():
        pytest.skip("the package has no libggml-base.so here")
    quantize = ctypes.CDLL(str(path)).ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    values = np.ascontiguousarray(values, dtype=np.float32)
    rows = np.zeros((len(values), type_.row_bytes(values.shape[1])), dtype=np.uint8)
    quantize(type_, values.ctypes.data, rows.ctypes.data, 0, len(values), values.shape[1], None)
    return rows


def hard_values() -> np.ndarray:
    """float32 [4096, 64]: normal, coarse, mostly zero, signed zeros, any F16, very small."""
    rng = np.random.default_rng(3)
    values = rng.normal(0, 1, (4096, 64)).astype(np.float32)
    values[512:1024] = np.rint(values[512:1024] * 7) / 7
    values[1024:1536] = np.rint(values[1024:1536] * 3)
    values[1536:2048] *= rng.random((512, 64)) < 0.1
    values[2048:2052] = -0.0
    values[2052:3072] = decode_f16(rng.integers(0, 1 << 16, (1020, 64)))
    values[3072:3584] *= np.float32(1e-38)
    return values


def decode_f16(bits: np.ndarray) -> np.ndarray:
    values = bits.astype(np.uint16).view(np.float16).astype(np.float32)
    return np.where(np.isfinite(values), values, np.float32(0))


@pytest.mark.parametrize("type_", [GgmlType.Q8_0, GgmlType.Q4_0])
def test_blocks_are_those_of_ggml(type_: GgmlType) -> None:
    values = hard_values()
    np.testing.assert_array_equal(store_rows(values, type_), ggml_rows(values, type_))


@pytest.mark.parametrize("type_", [GgmlType.F32, GgmlType.F16, GgmlType.BF16, GgmlType.Q8_0, GgmlType.Q4_0])
def test_rows_are_those_of_libcachegen(type_: GgmlType) -> None:
    cases = pytest.importorskip("codec_cases", reason="libcachegen is not built")
    values = hard_values()[:3072]
    rows = store_rows(values, type_)
    np.testing.assert_array_equal(rows, cases.native_rows(values, type_))
    loaded = load_rows(rows, type_)
    plane = cases.Plane(rows, type_, values.shape[1])
    np.testing.assert_array_equal(loaded.view(np.uint32), cases.load(plane, len(rows)).view(np.uint32))


def test_rows_of_every_type_load_near_what_was_stored() -> None:
    values = random_tile(2, 5, 64)
    np.testing.assert_array_equal(load_rows(store_rows(values, GgmlType.F32), GgmlType.F32), values)
    np.testing.assert_array_equal(load_rows(store_rows(values, GgmlType.F16), GgmlType.F16), values)
    largest = np.abs(values).max()
    for type_, error in ((GgmlType.BF16, 1 / 256), (GgmlType.Q8_0, 1 / 127), (GgmlType.Q4_0, 1 / 8)):
        assert np.abs(load_rows(store_rows(values, type_), type_) - values).max() <= largest * error


def test_q8_0_rounds_halves_away_from_zero() -> None:
    values = np.zeros((1, 32), dtype=np.float32)
    values[0, :6] = [127, 0.5, -0.5, 1.5, 0.49999997, -2.5]
    assert store_rows(values, GgmlType.Q8_0)[0, 2:8].view(np.int8).tolist() == [127, 1, -1, 2, 0, -3]


def test_nans_become_the_quiet_one_of_their_sign() -> None:
    nans = np.array([[0x7F800001, 0xFFC12345]], dtype=np.uint32).view(np.float32)
    assert store_rows(nans, GgmlType.F16).view("<u2").tolist() == [[0x7E00, 0xFE00]]
    assert store_rows(nans, GgmlType.BF16).view("<u2").tolist() == [[0x7FC0, 0xFFC1]]


def test_rows_that_no_type_has() -> None:
    for call in (
        lambda: store_rows(np.zeros((1, 33), np.float32), GgmlType.Q8_0),
        lambda: store_rows(np.zeros((1, 32), np.float32), GgmlType.Q5_0),
        lambda: load_rows(np.zeros((1, 33), np.uint8), GgmlType.Q8_0),
        lambda: load_rows(np.zeros((1, 22), np.uint8), GgmlType.Q5_0),
    ):
        with pytest.raises(CachegenError, match="ERR_ARGUMENT"):
            call()


# archives


def native_page(kind: Ckg1Kind, values: np.ndarray) -> bytes:
    type_ = TYPES[kind.name.removesuffix("_ROWS").removesuffix("_TRANSPOSED")]
    return store_rows(np.ascontiguousarray(values.T) if kind.is_transposed else values, type_).tobytes()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tile_tokens", [256, 7])
def test_pages_of_all_kinds_round_trip(tile_tokens: int, version: int) -> None:
    parts, page = [], b""
    for index, kind in enumerate(TYPED_KINDS):
        bins = 16 if index % 2 else 32
        values = random_tile(index, 20, 64)
        starts = range(0, len(values), tile_tokens)
        decoded = [decode_tile(encode_tile(values[at : at + tile_tokens], bins, version)) for at in starts]
        page += native_page(kind, np.concatenate(decoded).astype(np.float32))
        parts.append(Ckg1Part(kind, values, bins))
    parts.append(Ckg1Part(Ckg1Kind.EXACT, b"tail"))
    data = encode_ckg1(parts, version=version, tile_tokens=tile_tokens)
    assert decode_ckg1(data) == page + b"tail"
    assert len(read_ckg1(data)) == len(TYPED_KINDS) * -(-20 // tile_tokens) + 1


def test_a_slab_of_more_than_one_full_tile() -> None:
    values = random_tile(4, 300, 4)
    data = encode_ckg1([Ckg1Part(Ckg1Kind.F32_TRANSPOSED, values), Ckg1Part(Ckg1Kind.F32_ROWS, values)])
    page = np.frombuffer(decode_ckg1(data), dtype="<f4")
    np.testing.assert_array_equal(page[:1200].reshape(4, 300).T, page[1200:].reshape(300, 4))
    np.testing.assert_allclose(page[1200:].reshape(300, 4), values, atol=float(np.abs(values).max()) / 29)


def test_encoding_refuses_parts_that_do_not_fit() -> None:
    for part in (
        Ckg1Part(Ckg1Kind.F16_ROWS, b"bytes"),
        Ckg1Part(Ckg1Kind.EXACT, TILE),
        Ckg1Part(Ckg1Kind.Q8_0_ROWS, TILE),
    ):
        with pytest.raises(EncodeError, match="ERR_ARGUMENT"):
            encode_ckg1([part])


ARCHIVE = encode_ckg1(
    [
        Ckg1Part(Ckg1Kind.F16_ROWS, TILE, 32),
        Ckg1Part(Ckg1Kind.F16_TRANSPOSED, TRANSPOSED, 16),
        Ckg1Part(Ckg1Kind.EXACT, b"\xab\xcd"),
    ]
)
RECORDS = read_ckg1(ARCHIVE)
FIRST, SECOND, THIRD = 16, 16 + 52 + 27, 16 + 52 + 27 + 52 + 26  # where the records of ARCHIVE begin
HUGE = (1 << 64) - 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", "ERR_TRUNCATED"),
        (b"CKG2", "ERR_MAGIC"),
        (b"LCG1" + ARCHIVE[4:], "ERR_MAGIC"),
        (ARCHIVE[:15], "ERR_TRUNCATED"),
        (patched(ARCHIVE, 4, "Q", 0), "ERR_GEOMETRY"),
        (patched(ARCHIVE, 4, "Q", 17), "ERR_COVERAGE"),
        (patched(ARCHIVE, 4, "Q", 19), "ERR_COVERAGE"),
        (patched(ARCHIVE, 4, "Q", HUGE), "ERR_COVERAGE"),
        (patched(ARCHIVE, 12, "I", 0), "ERR_GEOMETRY"),
        (patched(ARCHIVE, 12, "I", 2), "ERR_TRAILING"),
        (patched(ARCHIVE, 12, "I", 4), "ERR_TRUNCATED"),
        (patched(ARCHIVE, 12, "I", (1 << 32) - 1), "ERR_TRUNCATED"),
        (patched(ARCHIVE, FIRST, "B", 7), "ERR_GEOMETRY"),
        (patched(ARCHIVE, FIRST + 1, "B", 4), "ERR_GEOMETRY"),
        (patched(ARCHIVE, THIRD + 1, "B", 2), "ERR_GEOMETRY"),
        (patched(ARCHIVE, FIRST, "BB", 5, 34), "ERR_GEOMETRY"),
        (patched(ARCHIVE, FIRST, "BB", 3, 4), "ERR_GEOMETRY"),
        (patched(ARCHIVE, FIRST + 2, "B", 1), "ERR_RESERVED"),
        (patched(ARCHIVE, THIRD + 3, "B", 1), "ERR_RESERVED"),
        (patched(ARCHIVE, FIRST + 4, "Q", 1), "ERR_COVERAGE"),
        (patched(ARCHIVE, SECOND + 4, "Q", 7), "ERR_COVERAGE"),
        (patched(ARCHIVE, SECOND + 4, "Q", 0), "ERR_COVERAGE"),
        (patched(ARCHIVE, THIRD + 4, "Q", HUGE), "ERR_COVERAGE"),
        (patched(ARCHIVE, FIRST + 12, "Q", 0), "ERR_GEOMETRY"),
        (patched(ARCHIVE, FIRST + 12, "Q", 9), "ERR_GEOMETRY"),
        (patched(ARCHIVE, THIRD + 12, "Q", 0), "ERR_GEOMETRY"),
        (patched(ARCHIVE, THIRD + 12, "Q", 3), "ERR_GEOMETRY"),
        (patched(ARCHIVE, FIRST + 20, "Q", 1), "ERR_GEOMETRY"),
        (patched(ARCHIVE, FIRST + 28, "Q", 1), "ERR_GEOMETRY"),
        (patched(ARCHIVE, FIRST + 28, "QQ", HUGE, 1), "ERR_GEOMETRY"),
        (patched(ARCHIVE, SECOND + 28, "QQ", 0, 0), "ERR_GEOMETRY"),
        (patched(ARCHIVE, SECOND + 28, "QQ", 1, 3), "ERR_COVERAGE"),
        (patched(ARCHIVE, SECOND + 28, "QQ", 0, 3), "ERR_COVERAGE"),
        (patched(ARCHIVE, SECOND + 28, "QQ", 0, HUGE), "ERR_COVERAGE"),
        (patched(ARCHIVE, FIRST + 44, "Q", 26), "ERR_TRUNCATED"),
        (patched(ARCHIVE, FIRST + 44, "Q", HUGE), "ERR_TRUNCATED"),
        (patched(ARCHIVE, FIRST + 52, "B", 0), "ERR_MAGIC"),
        (patched(ARCHIVE, FIRST + 57, "B", 4), "ERR_GEOMETRY"),
        (ARCHIVE[:-1], "ERR_TRUNCATED"),
        (ARCHIVE + b"\0", "ERR_TRAILING"),
    ],
)
def test_every_rule_of_an_archive(data: bytes, status: str) -> None:
    assert status_of(read_ckg1, data) == status
    assert status_of(decode_ckg1, data) == status


def test_errors_inside_a_tile_name_the_record() -> None:
    damaged = patched(ARCHIVE, SECOND + 52 + 16, "f", -1.0)
    assert len(read_ckg1(damaged)) == 3
    with pytest.raises(ArchiveError, match=r"record 1: token 0: maximum -1\.0 .*ERR_TABLE"):
        decode_ckg1(damaged)


def test_numbers_that_are_not_used_may_be_anything_allowed() -> None:
    page = decode_ckg1(ARCHIVE)
    assert decode_ckg1(patched(ARCHIVE, FIRST + 28, "QQ", 0, 0)) == page
    assert decode_ckg1(patched(ARCHIVE, FIRST + 28, "QQ", 5, 7)) == page
    assert decode_ckg1(patched(ARCHIVE, THIRD + 20, "QQQ", 1, HUGE, 3)) == page


def archive_of(records: list[Ckg1Record], page_bytes: int) -> bytes:
    return write_ckg1(page_bytes, records)


def test_records_may_come_in_any_order() -> None:
    values = random_tile(6, 12, 32)
    data = encode_ckg1([Ckg1Part(Ckg1Kind.F16_TRANSPOSED, values), Ckg1Part(Ckg1Kind.Q4_0_ROWS, values)], tile_tokens=5)
    records = read_ckg1(data)
    page = decode_ckg1(data)
    assert len(page) == 12 * (64 + 18)
    for order in (records[::-1], records[1::2] + records[::2]):
        assert decode_ckg1(archive_of(order, len(page))) == page


def slab() -> list[Ckg1Record]:
    return read_ckg1(encode_ckg1([Ckg1Part(Ckg1Kind.F16_TRANSPOSED, random_tile(7, 6, 4))], tile_tokens=2))


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r[1:],
        lambda r: r[:-1],
        lambda r: [r[0], r[2]],
        lambda r: [*r, r[1]],
        lambda r: [r[0], r[0], r[2]],
        lambda r: [r[0], r[1]._replace(token_start=1), r[2]],
        lambda r: [r[0], r[1]._replace(total_tokens=7), r[2]],
        lambda r: [r[0], r[1]._replace(offset=4), r[2]],
        lambda r: [tile._replace(offset=8) for tile in r],
        lambda r: [r[0], r[1]._replace(kind=Ckg1Kind.F32_TRANSPOSED, n_bytes=32), r[2]],
        lambda r: [r[0], r[1]._replace(kind=Ckg1Kind.F16_ROWS), r[2]],
        lambda r: [r[0], r[1]._replace(payload=encode_tile(random_tile(8, 2, 5), 32, 2), n_bytes=20), r[2]],
        lambda r: [*r, Ckg1Record(Ckg1Kind.EXACT, 0, 4, 0, 0, 0, b"four")],
        lambda r: [*r, Ckg1Record(Ckg1Kind.EXACT, 47, 1, 0, 0, 0, b"1")],
        lambda r: [*r, Ckg1Record(Ckg1Kind.EXACT, 48, 1, 0, 0, 0, b"1")],
        lambda r: [*r, Ckg1Record(Ckg1Kind.EXACT, 49, 1, 0, 0, 0, b"1")],
    ],
)
def test_slabs_are_covered_exactly(change: Callable[[list[Ckg1Record]], list[Ckg1Record]]) -> None:
    assert len(decode_ckg1(archive_of(slab(), 48))) == 48
    assert status_of(read_ckg1, archive_of(change(slab()), 48)) == "ERR_COVERAGE"


def test_damaged_archives_are_refused_or_give_a_page() -> None:
    size = len(decode_ckg1(ARCHIVE))

    def decode(damaged: bytes) -> None:
        assert len(decode_ckg1(damaged)) == size

    refused, accepted = outcomes(decode, all_flips(ARCHIVE))
    assert refused > accepted > 0
    assert outcomes(decode, [ARCHIVE[:n] for n in range(len(ARCHIVE))]) == (len(ARCHIVE), 0)


def test_random_bytes_are_refused() -> None:
    rng = np.random.default_rng(9)
    for size in (4, 16, 40, 68, 200, 1000):
        noise = rng.bytes(size)
        for magic in (b"LCG1", b"LCG2"):
            assert outcomes(decode_tile, [magic + noise[4:]]) == (1, 0)
        assert outcomes(decode_ckg1, [b"CKG1" + noise[4:]]) == (1, 0)
