"""LCG3: round trips, every instruction set against the numpy decoder, ranges, layouts, refusals, damage."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import struct

import numpy as np
import pytest
import xxhash
from codec_cases import (
    ISAS,
    TYPES,
    as_rows,
    available_isas,
    implementation,
    isa,  # noqa: F401
    kv_like,
    load,
    native_rows,
    random_planes,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_cachegen import codec
from llama_cachegen.codec import EXACT, Archive, ArchiveError, CodecError, Kind, Mode, Plane, Profile, Span
from llama_cachegen.codec import archive as codec_archive
from llama_cachegen.codec._lib import ffi, lib
from llama_cachegen.codec.reference.lcg3 import DecodedPlane, alias_slots, decode_lcg3
from llama_cachegen.codec.reference.stores import load_rows, store_rows
from llama_cachegen.ggml_types import GgmlType
from numpy.typing import NDArray
from parity import ORACLE, SCALAR, Cell, Parity


def profile(n_key: int = 31, n_value: int = 15, **more: object) -> Profile:
    return Profile("test", (Span(0, None, n_key),), (Span(0, None, n_value),), **more)  # type: ignore[arg-type]


def empty_like(plane: Plane) -> Plane:
    return dataclasses.replace(plane, data=np.full_like(plane.data, 0xAA))


def decode(data: bytes, destinations: list[Plane], **more: int) -> None:
    with Archive(data) as archive:
        archive.verify()
        archive.decode(destinations, **more)


@functools.lru_cache(maxsize=64)
def decoded_by_numpy(data: bytes) -> list[DecodedPlane]:
    """The numpy decoder is slow, and every instruction set makes the same archives."""
    return decode_lcg3(data)


def rows_of(decoded: DecodedPlane, type_: GgmlType) -> NDArray[np.uint8]:
    """The native rows of a plane of the numpy decoder, in another type if it wants: numpy's own stores."""
    if decoded.values is None:
        assert decoded.native is not None
        rows = np.concatenate([decoded.exact_rows, decoded.native])
        return rows if type_ == decoded.type else store_rows(load_rows(rows, GgmlType(decoded.type)), type_)
    exact = decoded.exact_rows
    if type_ != decoded.type:
        exact = store_rows(load_rows(exact, GgmlType(decoded.type)), type_)
    return np.concatenate([exact, store_rows(decoded.values, type_)])


def cell_of(plane: Plane, mode: int) -> Cell:
    return Cell("LCG3" if mode == Mode.LOSSY else "LCG3 exact", plane.type, plane.transposed)


def check_against_numpy(parity: Parity, data: bytes, outputs: list[Plane]) -> None:
    """Every byte of the native decoder's output equals the numpy decoder's, whatever its type and layout."""
    for plane, decoded in zip(outputs, decoded_by_numpy(data), strict=True):
        expected = rows_of(decoded, plane.type)
        assert as_rows(plane).shape == expected.shape
        parity.same(cell_of(plane, decoded.mode), implementation(), ORACLE, as_rows(plane), expected)


def check_against_source(parity: Parity, planes: list[Plane], outputs: list[Plane]) -> None:
    """What came out of a lossless archive is what went in."""
    for plane, output in zip(planes, outputs, strict=True):
        parity.same(cell_of(plane, Mode.EXACT), implementation(), "source", output.data, plane.data)


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "transposed"])
@pytest.mark.parametrize("name", list(codec.PROFILES))
def test_every_type(parity: Parity, isa: str, name: str, transposed: bool) -> None:  # noqa: F811
    planes = random_planes(1, 150, transposed=transposed)
    data = codec.encode(planes, name)
    outputs = [empty_like(plane) for plane in planes]
    decode(data, outputs)
    check_against_numpy(parity, data, outputs)
    if name == "exact":
        check_against_source(parity, planes, outputs)


@pytest.mark.parametrize("n_levels", [3, 5, 15, 17, 31, 33, 63])
@pytest.mark.parametrize("n_classes", [1, 2, 9, 16])
def test_alphabets(parity: Parity, isa: str, n_levels: int, n_classes: int) -> None:  # noqa: F811
    planes = random_planes(n_levels, 333, types=[GgmlType.F16], n_channels=96)
    data = codec.encode(planes, profile(n_levels, n_levels, n_classes=n_classes, block_tokens=128, n_models=5))
    outputs = [empty_like(plane) for plane in planes]
    decode(data, outputs)
    check_against_numpy(parity, data, outputs)


@pytest.mark.parametrize("n_channels", [1, 2, 31, 32, 33, 63, 65, 130])
@pytest.mark.parametrize("n_tokens", [1, 2, 31, 64, 65])
def test_odd_shapes(parity: Parity, isa: str, n_channels: int, n_tokens: int) -> None:  # noqa: F811
    for name in ("lmcache", "exact"):
        planes = random_planes(7, n_tokens, types=[GgmlType.F16, GgmlType.F32], n_channels=n_channels)
        data = codec.encode(planes, name)
        outputs = [empty_like(plane) for plane in planes]
        decode(data, outputs)
        check_against_numpy(parity, data, outputs)


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "transposed"])
def test_encoders_agree(parity: Parity, transposed: bool) -> None:
    """Every type on its own, and all of them in one archive."""
    before = lib.cachegen_isa_active()
    pages = [random_planes(3, 300, types=types, transposed=transposed) for types in ([one] for one in TYPES)]
    pages.append(random_planes(3, 300, transposed=transposed))
    cases = [(planes, name) for planes in pages for name in codec.PROFILES]
    archives: dict[str, list[bytes]] = {}
    for name in available_isas():
        assert lib.cachegen_isa_select(ISAS[name]) == 0
        archives[implementation()] = [codec.encode(planes, profile) for planes, profile in cases]
        assert archives[implementation()] == [codec.encode(planes, profile, n_threads=2) for planes, profile in cases]
    assert lib.cachegen_isa_select(before) == 0
    expected = archives.pop(SCALAR)
    for name, made in archives.items():
        for (planes, _), data, scalar in zip(cases, made, expected, strict=True):
            with Archive(data) as archive:
                for plane, described in zip(planes, archive.planes, strict=True):
                    parity.same(cell_of(plane, described.mode), name, SCALAR, data, scalar)


def test_lmcache_profile_gives_cachegens_own_values() -> None:
    rng = np.random.default_rng(5)
    for type_ in (GgmlType.F16, GgmlType.F32):
        rows = native_rows(kv_like(rng, 90, 64), type_)
        plane = Plane(rows, type_, 64)
        output = empty_like(plane)
        decode(codec.encode([plane], "lmcache"), [output])
        x = load(plane, 90)
        scale = np.abs(x).max(axis=1, keepdims=True)
        centre = np.float32(15)
        symbols = np.rint((x * (centre / scale)).astype(np.float32) + centre).astype(np.float32)
        expected = ((symbols - centre) / centre * scale).astype(np.float32)
        np.testing.assert_array_equal(native_rows(expected, type_), output.data)


def test_ranges_and_cells() -> None:
    planes = random_planes(11, 500, types=[GgmlType.F16, GgmlType.Q8_0])
    data = codec.encode(planes, profile(n_exact_tokens=5, block_tokens=96))
    whole = [empty_like(plane) for plane in planes]
    decode(data, whole)
    rng = np.random.default_rng(0)
    for first, n in [(0, 1), (0, 5), (3, 4), (4, 2), (5, 96), (100, 1), (101, 300), (499, 1), (0, 500)]:
        parts = [empty_like(plane) for plane in planes]
        decode(data, parts, first_token=first, n_tokens=n, n_threads=2)
        scattered = [
            dataclasses.replace(empty_like(plane), cells=rng.permutation(500)[:n].astype(np.uint32)) for plane in planes
        ]
        decode(data, scattered, first_token=first, n_tokens=n)
        for plane, part, spread in zip(whole, parts, scattered, strict=True):
            np.testing.assert_array_equal(part.data[:n], plane.data[first : first + n])
            assert (part.data[n:] == 0xAA).all()
            assert spread.cells is not None
            np.testing.assert_array_equal(spread.data[spread.cells], plane.data[first : first + n])
            assert (np.delete(spread.data, spread.cells, axis=0) == 0xAA).all()


@pytest.mark.parametrize("n_levels", [17, 31, 33, 63])
def test_levels_that_are_zero(parity: Parity, isa: str, n_levels: int) -> None:  # noqa: F811
    """A set may have any levels: here the upper ones are 0, which no encoder of ours writes."""
    planes = random_planes(23, 120, types=[GgmlType.F32], n_channels=64)
    data = bytearray(codec.encode(planes, profile(n_levels, n_levels, n_exact_tokens=0, n_classes=3)))
    levels = 64 + 24 * len(planes) + 8
    n_kept = 16 if n_levels < 33 else 32
    data[levels + 4 * n_kept : levels + 4 * n_levels] = bytes(4 * (n_levels - n_kept))
    sealed = resealed(data)
    outputs = [empty_like(plane) for plane in planes]
    decode(sealed, outputs)
    check_against_numpy(parity, sealed, outputs)


@pytest.mark.parametrize("first_token", [1, 3, 5, 100, 101, 292, 499])
def test_planes_that_begin_later(parity: Parity, isa: str, first_token: int) -> None:  # noqa: F811
    """A window beside full planes: exact rows, a whole block or a part of one may be missing."""
    planes = random_planes(13, 500, types=[GgmlType.F16, GgmlType.Q8_0])
    for i in (1, 2):
        planes[i] = dataclasses.replace(planes[i], data=planes[i].data[first_token:].copy(), first_token=first_token)
    for one in (profile(n_exact_tokens=5, block_tokens=96), EXACT):
        data = codec.encode(planes, one)
        whole = [empty_like(plane) for plane in planes]
        decode(data, whole, n_threads=2)
        check_against_numpy(parity, data, whole)
        with Archive(data) as archive:
            assert [plane.first_token for plane in archive.planes] == [0, first_token, first_token, 0]
            assert archive.info.n_tokens == 500
        for first, n in [(0, 1), (2, 2), (first_token - 1, 3), (first_token, 1), (90, 20), (499, 1)]:
            n = min(n, 500 - first)
            parts = [empty_like(plane) for plane in planes]
            decode(data, parts, first_token=first, n_tokens=n)
            for plane, part in zip(whole, parts, strict=True):
                begin = max(first, plane.first_token)
                n_held = max(0, first + n - begin)
                at = begin - plane.first_token
                np.testing.assert_array_equal(part.data[:n_held], plane.data[at : at + n_held])
                assert (part.data[n_held:] == 0xAA).all()


def test_destinations_that_begin_later(isa: str) -> None:  # noqa: F811
    """Of full planes, the last tokens alone: what a cache with a sliding window wants of another one's archive."""
    planes = random_planes(29, 300, types=[GgmlType.F16, GgmlType.Q8_0])
    data = codec.encode(planes, profile(n_exact_tokens=5, block_tokens=96))
    whole = [empty_like(plane) for plane in planes]
    decode(data, whole)
    for first_token in (0, 2, 5, 100, 101, 299, 300, 400):
        parts = [dataclasses.replace(empty_like(plane), first_token=first_token) for plane in planes]
        decode(data, parts)
        for plane, part in zip(whole, parts, strict=True):
            n = max(0, 300 - first_token)
            np.testing.assert_array_equal(part.data[:n], plane.data[300 - n :])
            assert (part.data[n:] == 0xAA).all()


def test_decode_part_by_part(isa: str) -> None:  # noqa: F811
    """What a reader decodes while the archive comes in: the same bytes, every part checked on its own."""
    planes = random_planes(19, 300, types=[GgmlType.F16, GgmlType.Q8_0])
    planes[1] = dataclasses.replace(planes[1], data=planes[1].data[130:].copy(), first_token=130)
    data = codec.encode(planes, profile(n_exact_tokens=5, block_tokens=96))
    whole = [empty_like(plane) for plane in planes]
    decode(data, whole)

    number, reader = ffi.new("uint64_t *"), ffi.new("struct cachegen_lcg3 **")
    header = ffi.from_buffer(data[:64])
    assert lib.cachegen_lcg3_metadata_bytes(header, 64, len(data), number) == 0
    assert lib.cachegen_lcg3_metadata_bytes(header, 63, len(data), number) == lib.CACHEGEN_ERR_TRUNCATED
    assert lib.cachegen_lcg3_metadata_bytes(header, 64, len(data) + 1, number) == lib.CACHEGEN_ERR_TRAILING
    metadata = ffi.from_buffer(data[: number[0]])
    for n in range(len(metadata)):
        assert lib.cachegen_lcg3_open_metadata(metadata, n, len(data), reader) == lib.CACHEGEN_ERR_TRUNCATED
    assert lib.cachegen_lcg3_open_metadata(metadata, len(metadata), len(data), reader) == 0

    out = [empty_like(plane) for plane in planes]
    wanted = ffi.new("struct cachegen_lcg3_destination[]", len(out))
    for plane, one in zip(out, wanted, strict=True):
        plane._fill(one.rows, is_written=True)
    assert lib.cachegen_lcg3_decode(reader[0], 0, 300, wanted, len(out), ffi.NULL) == lib.CACHEGEN_ERR_ARGUMENT
    assert lib.cachegen_lcg3_verify(reader[0], ffi.NULL) == lib.CACHEGEN_ERR_ARGUMENT
    at, n_bytes, end = ffi.new("uint64_t *"), ffi.new("uint64_t *"), len(metadata)
    for part in range(5):
        assert lib.cachegen_lcg3_part(reader[0], part, at, n_bytes) == 0
        assert at[0] == end
        end += n_bytes[0]
        good = data[at[0] : end]
        for damaged, status in [
            (bytes([good[len(good) // 2] ^ 1]).join([good[: len(good) // 2], good[len(good) // 2 + 1 :]]), "DIGEST"),
            (good[:-1], "ARGUMENT"),
            (good + b"\0", "ARGUMENT"),
        ]:
            view = ffi.from_buffer(damaged)
            result = lib.cachegen_lcg3_decode_part(reader[0], part, view, len(view), 0, 300, wanted, len(out), ffi.NULL)
            assert result == getattr(lib, f"CACHEGEN_ERR_{status}")
        view = ffi.from_buffer(good)
        assert lib.cachegen_lcg3_decode_part(reader[0], part, view, len(view), 0, 300, wanted, len(out), ffi.NULL) == 0
    assert end == len(data)
    assert lib.cachegen_lcg3_part(reader[0], 5, at, n_bytes) == lib.CACHEGEN_ERR_ARGUMENT
    lib.cachegen_lcg3_close(reader[0])
    for plane, expected in zip(out, whole, strict=True):
        np.testing.assert_array_equal(plane.data, expected.data)


def test_encode_to_a_sink() -> None:
    """The pieces make the archive; a sink that refuses any of them ends the call."""
    planes = random_planes(17, 300, types=[GgmlType.F16, GgmlType.Q4_0])
    one = profile(n_exact_tokens=5, block_tokens=96)
    expected = codec.encode(planes, one)
    described, sources, options = codec_archive._arguments(planes, one, 2)
    pieces: list[tuple[int, bytes]] = []
    refuse_at = -1

    @ffi.callback("int32_t(void *, uint64_t, const void *, uint64_t)")  # type: ignore[untyped-decorator]
    def write(_state: object, offset: int, data: object, n_bytes: int) -> int:
        pieces.append((offset, bytes(ffi.buffer(data, n_bytes))))
        return int(len(pieces) - 1 == refuse_at)

    sink = ffi.new("struct cachegen_sink *", {"write": write})
    n_bytes = ffi.new("uint64_t *")

    def run() -> int:
        pieces.clear()
        return int(lib.cachegen_lcg3_encode_to(described, sources, len(planes), options, ffi.NULL, sink, n_bytes))

    assert run() == lib.CACHEGEN_OK and n_bytes[0] == len(expected)
    archive = bytearray(len(expected))
    for offset, piece in pieces:
        archive[offset : offset + len(piece)] = piece
    assert bytes(archive) == expected
    assert pieces[-1][0] == 0 and [at for at, _ in pieces[:-1]] == sorted(at for at, _ in pieces[:-1])
    assert sum(len(piece) for _, piece in pieces) == len(expected)
    for refuse_at in range(len(pieces)):
        assert run() == lib.CACHEGEN_ERR_CALLBACK and len(pieces) == refuse_at + 1


@pytest.mark.parametrize(
    ("source", "target", "transposed"),
    [(*pair, False) for pair in itertools.permutations(TYPES, 2)]
    + [(source, target, True) for source, target in itertools.permutations(TYPES, 2) if target.block_size == 1],
)
def test_any_type_to_any_type(
    parity: Parity,
    isa: str,  # noqa: F811
    source: GgmlType,
    target: GgmlType,
    transposed: bool,
) -> None:
    planes = random_planes(2, 70, types=[source])
    for name in ("balanced", "exact"):
        data = codec.encode(planes, profile(n_exact_tokens=2) if name == "balanced" else name)
        shape = (64, 70 * target.block_bytes) if transposed else (70, target.row_bytes(64))
        other = [Plane(np.zeros(shape, np.uint8), target, 64, transposed=transposed) for _ in planes]
        decode(data, other)
        check_against_numpy(parity, data, other)


def hadamard(values: NDArray[np.float32], n_rot: int) -> NDArray[np.float32]:
    """The rotation with its fixed order of operations."""
    x = values.reshape(len(values), -1, n_rot) * np.float32(1 / np.sqrt(np.float32(n_rot)))
    distance = 1
    while distance < n_rot:
        pairs = x.reshape(*x.shape[:2], -1, 2, distance)
        x = np.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], axis=-2).reshape(
            x.shape
        )
        distance *= 2
    return np.asarray(x.reshape(values.shape), dtype=np.float32)


def test_rotation(parity: Parity, isa: str) -> None:  # noqa: F811
    rng = np.random.default_rng(8)
    plain = kv_like(rng, 200, 128)
    plain[:, 5] *= 30
    rotated = Plane(native_rows(hadamard(plain, 64), GgmlType.Q8_0), GgmlType.Q8_0, 128, n_rot=64)
    sizes = {}
    for unrotate in (False, True):
        data = codec.encode([rotated], profile(31, 31, unrotate=unrotate, n_exact_tokens=3))
        sizes[unrotate] = len(data)
        decoded = decode_lcg3(data)[0]
        assert decoded.unrotated == unrotate and decoded.n_rot == 64 and decoded.values is not None
        first = load(rotated, 200)[:3]
        for type_, n_rot in itertools.product((GgmlType.F16, GgmlType.Q8_0), (0, 64, 128)):
            output = Plane(np.zeros((200, type_.row_bytes(128)), np.uint8), type_, 128, n_rot=n_rot)
            decode(data, [output])
            expected = []
            for values, n_rot_before in ((first, 64), (decoded.values, 0 if unrotate else 64)):
                if n_rot_before != n_rot:
                    values = hadamard(values, n_rot_before) if n_rot_before else values
                    values = hadamard(values, n_rot) if n_rot else values
                expected.append(store_rows(values, type_))
            parity.same(cell_of(output, Mode.LOSSY), implementation(), ORACLE, output.data, np.concatenate(expected))
    assert sizes[True] < sizes[False]


def test_zero_rows_and_extremes(parity: Parity, isa: str) -> None:  # noqa: F811
    x = np.zeros((40, 64), np.float32)
    x[1] = 1e-7
    x[2] = -65504
    x[3, 7] = 3.0
    x[4] = np.linspace(-15, 15, 64)
    x[5] = 2.0**-24
    for type_ in TYPES:
        for scale in ("source", "bf16"):
            rows = Plane(native_rows(x, type_), type_, 64)
            output = empty_like(rows)
            data = codec.encode([rows], profile(31, 31, scale=scale))
            decode(data, [output])
            check_against_numpy(parity, data, [output])
            error = np.abs(load(output, 40) - load(rows, 40)).max(axis=1)
            # half a step, a scale rounded up by one part in 128, and one rounding to the type's own grid
            assert (
                error <= np.abs(x).max(axis=1) * (0.5 / 15 * 1.01 + (0.08 if type_ is GgmlType.Q4_0 else 0.01)) + 1e-6
            ).all()
            assert (load(output, 40)[0] == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_is_refused_or_kept(bad: float) -> None:
    x = np.ones((50, 64), np.float32)
    x[30, 3] = bad
    for type_ in (GgmlType.F16, GgmlType.F32, GgmlType.BF16):
        plane = Plane(native_rows(x, type_), type_, 64)
        with pytest.raises(codec.EncodeError, match="token 30"):
            codec.encode([plane], "lmcache")
        output = empty_like(plane)
        decode(codec.encode([plane], "exact"), [output])
        np.testing.assert_array_equal(plane.data, output.data)


def test_metadata_alone() -> None:
    planes_in = random_planes(3, 80, types=[GgmlType.F16])
    data = codec.encode(planes_in, "balanced")
    with Archive(data) as archive:
        info, planes = archive.info, archive.planes
    no_payload = data[: info.metadata_bytes] + b"\xff" * (len(data) - info.metadata_bytes)
    with Archive(no_payload, metadata_only=True) as archive:
        assert archive.info == info
        assert archive.planes == tuple(dataclasses.replace(one, symbol_bytes=0) for one in planes)
        with pytest.raises(CodecError, match="only the metadata was opened"):
            archive.verify()
        with pytest.raises(CodecError, match="only the metadata was opened"):
            archive.decode([empty_like(plane) for plane in planes_in])
    with pytest.raises(CodecError, match="ERR_DIGEST"):
        Archive(data[:80] + bytes([data[80] ^ 1]) + data[81:], metadata_only=True)


def test_exact_falls_back_to_raw() -> None:
    rng = np.random.default_rng(1)
    plane = Plane(rng.integers(0, 256, (64, 256), dtype=np.uint8), GgmlType.F32, 64)  # all 512 signs and exponents
    data = codec.encode([plane], "exact")
    with Archive(data) as archive:
        assert archive.planes[0].mode is Mode.RAW
        output = empty_like(plane)
        archive.decode([output])
    np.testing.assert_array_equal(plane.data, output.data)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    n_tokens=st.integers(1, 200),
    n_channels=st.sampled_from([32, 64, 96, 160]),
    types=st.lists(st.sampled_from(TYPES), min_size=1, max_size=3),
    n_key=st.integers(1, 31).map(lambda n: 2 * n + 1),
    n_value=st.integers(1, 31).map(lambda n: 2 * n + 1),
    n_exact_tokens=st.integers(0, 40),
    block_tokens=st.integers(32, 100),
    n_models=st.integers(1, 256),
    n_classes=st.integers(1, 16),
    n_sample_tokens=st.sampled_from([0, 1, 32, 64]),
    is_exact=st.booleans(),
    transposed=st.booleans(),
)
def test_any_page(
    parity: Parity, seed: int, n_tokens: int, n_channels: int, types: list[GgmlType], n_key: int, n_value: int,
    n_exact_tokens: int, block_tokens: int, n_models: int, n_classes: int, n_sample_tokens: int, is_exact: bool,
    transposed: bool,
) -> None:  # fmt: skip
    planes = random_planes(seed, n_tokens, types=types, n_channels=n_channels, transposed=transposed)
    spans = ((), ()) if is_exact else ((Span(0, None, n_key),), (Span(0, None, n_value),))
    chosen = Profile(
        "any", *spans, n_exact_tokens=n_exact_tokens, block_tokens=block_tokens, n_models=n_models, n_classes=n_classes,
        n_sample_tokens=n_sample_tokens,
    )  # fmt: skip
    data = codec.encode(planes, chosen, n_threads=2)
    outputs = [empty_like(plane) for plane in planes]
    decode(data, outputs)
    check_against_numpy(parity, data, outputs)
    if is_exact:
        check_against_source(parity, planes, outputs)


# ---- damage ----


@pytest.fixture(scope="module")
def small() -> tuple[bytes, list[Plane]]:
    planes = [
        *random_planes(4, 45, types=[GgmlType.F16], n_channels=32),
        Plane(np.random.default_rng(9).integers(0, 256, (45, 128), dtype=np.uint8), GgmlType.F32, 32, 1, Kind.AUX),
    ]
    return codec.encode(planes, profile(15, 3, n_exact_tokens=1, block_tokens=32, n_classes=2)), planes


def attempt(data: bytes, planes: list[Plane]) -> None:
    decode(data, [empty_like(plane) for plane in planes])


def test_every_flipped_bit_is_noticed(small: tuple[bytes, list[Plane]]) -> None:
    data, planes = small
    attempt(data, planes)
    for offset in range(len(data)):
        for bit in (0, 3, 7):
            damaged = bytearray(data)
            damaged[offset] ^= 1 << bit
            with pytest.raises((ArchiveError, codec.UnsupportedArchiveError)):
                attempt(bytes(damaged), planes)


def test_every_truncation_is_noticed(small: tuple[bytes, list[Plane]]) -> None:
    data, planes = small
    for n in range(len(data)):
        with pytest.raises(ArchiveError):
            attempt(data[:n], planes)
    with pytest.raises(ArchiveError, match="ERR_TRAILING"):
        attempt(data + b"\0", planes)


def resealed(data: bytearray) -> bytes:
    """The archive with digests that fit its bytes: what somebody who means harm would write."""
    (metadata_bytes,) = struct.unpack_from("<Q", data, 16)
    n_tokens, n_exact, block_tokens, n_planes = struct.unpack_from("<4I", data, 24)
    try:
        n_blocks = -(-(n_tokens - n_exact) // block_tokens)
        digests = metadata_bytes - 8 - 8 * (n_blocks + 1)
        sizes_begin = digests - (4 * n_blocks * n_planes + 7) // 8 * 8
        sizes = struct.unpack_from(f"<{n_blocks * n_planes}I", data, sizes_begin)
        end = len(data)
        for block in reversed(range(n_blocks)):
            begin = end - sum(sizes[block * n_planes : (block + 1) * n_planes])
            struct.pack_into("<Q", data, digests + 8 * (block + 1), xxhash.xxh3_64_intdigest(bytes(data[begin:end])))
            end = begin
        struct.pack_into("<Q", data, metadata_bytes - 8, xxhash.xxh3_64_intdigest(bytes(data[: metadata_bytes - 8])))
    except (struct.error, ZeroDivisionError, MemoryError, OverflowError):
        pass  # the change itself made that impossible
    return bytes(data)


def test_every_byte_changed_under_valid_digests(parity: Parity, isa: str, small: tuple[bytes, list[Plane]]) -> None:  # noqa: F811
    """Either a typed error, or a decode that the numpy decoder agrees with or refuses as well."""
    data, planes = small
    assert resealed(bytearray(data)) == data
    n_refused = 0
    for offset in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[offset] ^= change
            outputs = [empty_like(plane) for plane in planes]
            sealed = resealed(damaged)
            try:
                decode(sealed, outputs)
            except CodecError:
                n_refused += 1
                continue
            if (offset + change) % 40 == 0:  # the numpy decoder is too slow for all of them
                check_against_numpy(parity, sealed, outputs)
    assert n_refused > 2000


def changed(data: bytes, offset: int, form: str, value: int) -> bytes:
    damaged = bytearray(data)
    struct.pack_into("<" + form, damaged, offset, value)
    return resealed(damaged)


def test_header_limits(small: tuple[bytes, list[Plane]]) -> None:
    data, planes = small
    for offset, form, value, status in [
        (0, "I", 0x3247434C, "ERR_MAGIC"),
        (4, "H", 2, "ERR_VERSION"),
        (6, "H", 72, "ERR_VERSION"),
        (8, "Q", len(data) + 1, "ERR_TRUNCATED"),
        (8, "Q", len(data) - 1, "ERR_TRAILING"),
        (16, "Q", 2**63, "ERR_GEOMETRY"),
        (16, "Q", 0, "ERR_GEOMETRY"),
        (24, "I", 0, "ERR_LIMIT"),
        (24, "I", 2**32 - 1, "ERR_LIMIT"),
        (28, "I", 46, "ERR_GEOMETRY"),
        (28, "I", 5000, "ERR_LIMIT"),
        (32, "I", 31, "ERR_LIMIT"),
        (32, "I", 2**31, "ERR_LIMIT"),
        (36, "I", 0, "ERR_LIMIT"),
        (36, "I", 2**31, "ERR_LIMIT"),
        (40, "I", 17, "ERR_LIMIT"),
        (44, "I", 1, "ERR_RESERVED"),
        (48, "B", 0x20, "ERR_RESERVED"),
        (63, "B", 0x41, "ERR_RESERVED"),
    ]:
        with pytest.raises(CodecError, match=status):
            attempt(changed(data, offset, form, value), planes)


def test_plane_and_set_rules(small: tuple[bytes, list[Plane]]) -> None:
    data, planes = small
    plane, sets = 64, 64 + 24 * len(planes)
    for offset, form, value, status in [
        (plane + 4, "B", 0, "ERR_UNSUPPORTED"),
        (plane + 5, "B", 3, "ERR_UNSUPPORTED"),
        (plane + 6, "B", 7, "ERR_UNSUPPORTED"),
        (plane + 7, "B", 8, "ERR_UNSUPPORTED"),
        (plane + 8, "I", 0, "ERR_GEOMETRY"),
        (plane + 8, "I", 2**31, "ERR_GEOMETRY"),
        (plane + 12, "H", 3, "ERR_GEOMETRY"),
        (plane + 12, "H", 64, "ERR_GEOMETRY"),
        (plane + 14, "B", 1, "ERR_RESERVED"),
        (plane + 14, "B", 2, "ERR_RESERVED"),
        (plane + 15, "B", 2, "ERR_TABLE"),
        (plane + 16, "B", 1, "ERR_GEOMETRY"),
        (plane + 17, "B", 1, "ERR_RESERVED"),
        (plane + 19, "B", 1, "ERR_RESERVED"),
        (plane + 20, "I", planes[0].data.shape[0], "ERR_GEOMETRY"),
        (plane + 20, "I", 2**32 - 1, "ERR_GEOMETRY"),
        (plane + 20, "I", 1, "ERR_"),  # the exact rows are no longer where they were
        (sets, "B", 1, "ERR_TABLE"),
        (sets, "B", 65, "ERR_TABLE"),
        (sets + 1, "B", 0, "ERR_TABLE"),
        (sets + 1, "B", 17, "ERR_TABLE"),
        (sets + 2, "B", 2, "ERR_TABLE"),
        (sets + 3, "B", 1, "ERR_RESERVED"),
        (sets + 4, "H", 0, "ERR_TABLE"),
        (sets + 4, "H", 257, "ERR_TABLE"),
        (sets + 4, "H", 256, "ERR_"),
        (sets + 6, "H", 1, "ERR_RESERVED"),
        (sets + 8, "I", 0x7FC00000, "ERR_TABLE"),  # a level that is no number
        (sets + 8, "I", 0x3F800001, "ERR_TABLE"),  # a level above one
        (sets + 8 + 60, "B", 1, "ERR_TABLE"),  # the first class is 0
        (sets + 8 + 60 + 14, "B", 2, "ERR_TABLE"),
        (sets + 8 + 75, "B", 0, "ERR_TABLE"),  # frequencies that do not sum to 1,024
    ]:
        with pytest.raises(CodecError, match=status):
            attempt(changed(data, offset, form, value), planes)


def test_alias_slots_are_a_partition() -> None:
    rng = np.random.default_rng(2)
    for n_symbols in (2, 3, 15, 16, 17, 31, 32, 33, 63, 64):
        for _ in range(50):
            weights = rng.random(n_symbols) ** rng.integers(1, 30)
            frequencies = rng.multinomial(1024, weights / weights.sum())
            slots = alias_slots(frequencies)
            for symbol in range(n_symbols):
                ranks = slots[slots[:, 0] == symbol, 2]
                assert sorted(ranks) == list(range(frequencies[symbol]))
                assert (slots[slots[:, 0] == symbol, 1] == frequencies[symbol]).all()


# ---- calls that are wrong ----


def test_wrong_calls() -> None:
    planes = random_planes(1, 40, types=[GgmlType.F16])
    data = codec.encode(planes)
    with pytest.raises(ValueError, match="no planes"):
        codec.encode([])
    with pytest.raises(CodecError, match="ERR_MISMATCH"):
        codec.encode([planes[0], *random_planes(1, 41, types=[GgmlType.F16])])
    with pytest.raises(ValueError, match="no profile 'nope'"):
        codec.encode(planes, "nope")
    with pytest.raises(codec.UnsupportedArchiveError, match="ERR_UNSUPPORTED"):
        codec.encode([Plane(np.zeros((40, 24), np.uint8), GgmlType.Q5_1, 32)])
    with pytest.raises(CodecError, match="ERR_ARGUMENT"):
        codec.encode([dataclasses.replace(planes[0], n_rot=48)])
    with Archive(data) as archive:
        good = [empty_like(plane) for plane in planes]
        with pytest.raises(ValueError):
            archive.decode(good[:1])
        with pytest.raises(CodecError, match="ERR_ARGUMENT"):
            archive.decode(good, first_token=39, n_tokens=2)
        with pytest.raises(ValueError, match="0 tokens"):
            archive.decode(good, first_token=40)
        with pytest.raises(CodecError, match="ERR_MISMATCH"):
            archive.decode([good[0], Plane(np.zeros((40, 64), np.uint8), GgmlType.F16, 32)])
        with pytest.raises(CodecError, match="ERR_MISMATCH"):
            archive.decode([good[0], Plane(np.zeros((39, 128), np.uint8), GgmlType.F16, 64)])
        with pytest.raises(CodecError, match="cell 40"):
            archive.decode([dataclasses.replace(good[0], cells=np.full(40, 40, np.uint32)), None])
        with pytest.raises(ValueError, match="read-only"):
            frozen = np.zeros((40, 128), np.uint8)
            frozen.flags.writeable = False
            archive.decode([Plane(frozen, GgmlType.F16, 64), None])
        archive.decode([None, good[1]])
        assert (good[0].data == 0xAA).all() and not (good[1].data == 0xAA).all()
    with pytest.raises(ValueError, match="closed"):
        archive.verify()


def test_profiles() -> None:
    lmcache = codec.LMCACHE
    assert [lmcache.n_levels("K", layer, 28) for layer in (0, 9, 10, 27)] == [31, 31, 15, 15]
    assert [lmcache.n_levels("V", layer, 28) for layer in (0, 1, 2, 27)] == [31, 31, 15, 15]
    assert {lmcache.n_levels(kind, layer, 9) for kind in ("K", "V") for layer in range(9)} == {31}
    assert codec.EXACT.is_exact and codec.EXACT.n_levels("K", 0, 1) == 0
    for bad in [
        dict(key=(Span(1, None, 3),)),
        dict(key=(Span(0, 4, 3),)),
        dict(key=(Span(0, 4, 3), Span(5, None, 3))),
        dict(key=(Span(0, None, 4),)),
        dict(key=(Span(0, None, 65),)),
        dict(key=()),
        dict(n_models=0),
        dict(block_tokens=31),
        dict(n_classes=17),
        dict(scale="f64"),
        dict(name="with space"),
        dict(name=""),
    ]:
        with pytest.raises(ValueError):
            dataclasses.replace(codec.BALANCED, **bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layer 28"):
        lmcache.n_levels("K", 28, 28)
