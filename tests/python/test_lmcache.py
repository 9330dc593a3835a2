"""The CacheGen reference against what LMCache 0.5.6 made, byte for byte; refusals; hostile pickles."""

from __future__ import annotations

import dataclasses
import functools
import io
import os
import pickle
import re
import struct
import sys
import time
import types
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cachegen.codec import Kind, Plane
from llama_cachegen.codec.errors import ArchiveError, CodecError, EncodeError, UnsupportedArchiveError
from llama_cachegen.codec.reference import (
    MAX_ENCODE_TOKENS,
    CacheGenPayload,
    SubChunk,
    ValueType,
    check_payload,
    decode,
    decode_symbols,
    encode,
    lmcache_schedule,
    payload_from_container,
    payload_to_container,
)
from llama_cachegen.codec.reference import lmcache as module
from llama_cachegen.codec.reference.arithmetic import decode_streams, encode_streams
from llama_cachegen.codec.reference.cdf import build_cdf
from llama_cachegen.codec.reference.quantizer import dequantise, narrow, quantise, widen
from llama_cachegen.codec.reference.restricted_pickle import Call, Global, Instance, PersistentId, Reader
from llama_cachegen.evaluate.rivals import lmcache_calls
from llama_cachegen.ggml_types import GgmlType
from llama_cachegen.qualify import lmcache_peer
from llama_cachegen.qualify.lmcache_peer import PYTHON_VARIABLE, time_lmcache
from numpy.typing import NDArray
from parity import ORACLE, Cell, Parity

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "lmcache"
DOCUMENT = ROOT / "docs" / "formats" / "lmcache-container.md"
CASES = sorted(path.name for path in GOLDEN.iterdir())
ONE_TOKEN = "f_l2_t1_c24_f16"
EDGE = "g_l2_t17_c8_f16_edge"
TWO_CHUNKS = "e_l2_t300_c16_f16"

Array = NDArray[Any]


class Golden:
    """One folder of tests/golden/lmcache."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = GOLDEN / name
        self.input = self.load("input")
        self.n_layers, _, self.n_tokens, self.n_heads, self.head_size = self.input.shape
        self.bins = lmcache_schedule(self.n_layers)._asdict()
        self.container = (self.folder / "container.pickle").read_bytes()
        n_chunks = len(list(self.folder.glob("stream_*.npy")))
        self.chunks = [(self.load(f"stream_{i}"), self.load(f"lengths_{i}")) for i in range(n_chunks)]
        types = {ValueType.FLOAT32: GgmlType.F32, ValueType.FLOAT16: GgmlType.F16, ValueType.BFLOAT16: GgmlType.BF16}
        self.cell = Cell("LMCache", types[ValueType.of(self.input.dtype)])

    def load(self, name: str) -> Array:
        return np.load(self.folder / f"{name}.npy")

    def encoded(self) -> CacheGenPayload:
        return encode(self.input, **self.bins)

    def same(self, parity: Parity, ours: Array, theirs: Array) -> None:
        """One tensor of ours is LMCache's, bit by bit."""
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        parity.same(self.cell, ORACLE, "LMCache", ours, theirs)

    def check(self, parity: Parity, payload: CacheGenPayload) -> None:
        """Every field of a payload."""
        check_payload(payload)
        assert (payload.n_layers, payload.n_tokens) == (self.n_layers, self.n_tokens)
        assert (payload.n_heads, payload.head_size) == (self.n_heads, self.head_size)
        assert payload.value_type is ValueType.of(self.input.dtype)
        self.same(parity, payload.cdf, self.load("cdf"))
        self.same(parity, payload.key_maxima, self.load("max_key")[..., 0])
        self.same(parity, payload.value_maxima, self.load("max_value")[..., 0])
        assert [c.n_tokens for c in payload.chunks] == [
            min(256, self.n_tokens - 256 * i) for i in range(len(self.chunks))
        ]
        for chunk, (stream, lengths) in zip(payload.chunks, self.chunks, strict=True):
            self.same(parity, chunk.stream, stream)
            self.same(parity, chunk.lengths, lengths)


def same(a: Array, b: Array) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


def same_payload(a: CacheGenPayload, b: CacheGenPayload) -> None:
    assert (a.n_heads, a.head_size, a.value_type) == (b.n_heads, b.head_size, b.value_type)
    for name in ("cdf", "key_maxima", "value_maxima"):
        same(getattr(a, name), getattr(b, name))
    for x, y in zip(a.chunks, b.chunks, strict=True):
        assert x.n_tokens == y.n_tokens
        same(x.lengths, y.lengths)
        same(x.stream, y.stream)


def random_values(shape: Sequence[int], seed: int = 0, value_type: ValueType = ValueType.FLOAT16) -> Array:
    return narrow(np.random.default_rng(seed).normal(size=shape).astype(np.float32), value_type)


def refused(error: type[CodecError], status: str, call: Callable[[], object]) -> str:
    """Call, expect exactly that error; returns its message."""
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert caught.value.status_name == f"ERR_{status}"
    assert caught.value.status in range(1, 100)
    return str(caught.value)


# what LMCache made


@pytest.mark.parametrize("name", CASES)
def test_encode_equals_lmcache(parity: Parity, name: str) -> None:
    golden = Golden(name)
    golden.check(parity, golden.encoded())


@pytest.mark.parametrize("name", CASES)
def test_symbols_equal_lmcache(parity: Parity, name: str) -> None:
    golden = Golden(name)
    planes = np.concatenate([golden.input[:, 0], golden.input[:, 1]])
    planes = planes.reshape(2 * golden.n_layers, golden.n_tokens, -1)
    symbols, _ = quantise(planes, [*golden.bins["key_bins"], *golden.bins["value_bins"]])
    golden.same(parity, symbols, golden.load("symbols"))
    golden.same(parity, decode_symbols(golden.encoded()), golden.load("symbols"))
    golden.same(parity, build_cdf(symbols), golden.load("cdf"))


@pytest.mark.parametrize("name", CASES)
def test_read_and_decode_lmcaches_container(parity: Parity, name: str) -> None:
    golden = Golden(name)
    payload = payload_from_container(golden.container)
    golden.check(parity, payload)
    golden.same(parity, decode(payload, **golden.bins), golden.load("decoded"))
    for kind in (bytearray, memoryview):
        golden.check(parity, payload_from_container(kind(golden.container)))


@pytest.mark.parametrize("name", CASES)
def test_container_round_trip(parity: Parity, name: str) -> None:
    golden = Golden(name)
    payload = golden.encoded()
    ours = payload_to_container(payload)
    golden.check(parity, payload_from_container(ours))
    assert payload_to_container(payload_from_container(ours)) == ours
    assert payload_to_container(payload_from_container(golden.container)) == ours


# the container read by plain pickle, with stand-ins for LMCache's and torch's modules; shares nothing with the package


_TYPES = {"ByteStorage": "u1", "ShortStorage": "<i2", "IntStorage": "<i4", "HalfStorage": "<f2"}
_TYPES |= {"BFloat16Storage": "<u2", "FloatStorage": "<f4"}


def _load_from_bytes(data: bytes) -> Array:
    class Legacy(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            assert module == "torch"
            return _TYPES[name]

        def persistent_load(self, pid: Any) -> Any:
            kind, dtype, key, location, n_elements, view = pid
            assert (kind, view) == ("storage", None)
            return dtype, key, location, n_elements

    file = io.BytesIO(data)
    magic, version, system = (Legacy(file).load() for _ in range(3))
    assert (magic, version) == (0x1950A86A20F9469CFC6C, 1001)
    assert system["protocol_version"] == 1001
    assert system["little_endian"] is True
    assert system["type_sizes"] == {"short": 2, "int": 4, "long": 4}
    dtype, key, location, n_elements = Legacy(file).load()
    assert location == "cpu"
    assert Legacy(file).load() == [key]
    assert struct.unpack("<Q", file.read(8)) == (n_elements,)
    elements = np.frombuffer(file.read(), dtype=dtype)
    assert len(elements) == n_elements
    return elements


def _rebuild_tensor_v2(elements: Array, offset: int, size: Any, stride: Any, grad: bool, hooks: Any) -> Array:
    assert (offset, grad, hooks) == (0, False, OrderedDict())
    assert stride == tuple(int(np.prod(size[i + 1 :])) for i in range(len(size)))
    assert len(elements) == np.prod(size)
    return elements.reshape(size)


@dataclasses.dataclass
class CacheGenGPUBytestream:
    bytestream: Any
    bytestream_lengths: Any
    ntokens: int


@dataclasses.dataclass
class CacheGenGPUEncoderOutput:
    data_chunks: list[CacheGenGPUBytestream]
    cdf: Any
    max_tensors_key: Any
    max_tensors_value: Any
    num_heads: int
    head_size: int


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    basics = "lmcache.storage_backend.serde.cachegen_basics"
    parts = basics.split(".")
    contents: dict[str, dict[str, Any]] = {".".join(parts[:n]): {} for n in range(1, len(parts) + 1)}
    contents |= {"torch": {}, "torch._utils": {"_rebuild_tensor_v2": _rebuild_tensor_v2}}
    contents["torch.storage"] = {"_load_from_bytes": _load_from_bytes}
    contents[basics] = {c.__name__: c for c in (CacheGenGPUBytestream, CacheGenGPUEncoderOutput)}
    for name, members in contents.items():
        stand_in = types.ModuleType(name)
        vars(stand_in).update(members)
        monkeypatch.setitem(sys.modules, name, stand_in)


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "theirs"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("stand_ins")
def test_plain_pickle_loads_the_container(parity: Parity, name: str, ours: bool) -> None:
    golden = Golden(name)
    loaded = pickle.loads(payload_to_container(golden.encoded()) if ours else golden.container)
    assert type(loaded) is CacheGenGPUEncoderOutput
    assert set(vars(loaded)) == {field.name for field in dataclasses.fields(CacheGenGPUEncoderOutput)}
    assert (loaded.num_heads, loaded.head_size) == (golden.n_heads, golden.head_size)
    # their own container is read by none of our code: nothing to count
    check = functools.partial(golden.same, parity) if ours else same
    check(loaded.cdf.view(np.uint16), golden.load("cdf"))
    check(loaded.max_tensors_key, golden.load("max_key"))
    check(loaded.max_tensors_value, golden.load("max_value"))
    assert sum(chunk.ntokens for chunk in loaded.data_chunks) == golden.n_tokens
    for chunk, (stream, lengths) in zip(loaded.data_chunks, golden.chunks, strict=True):
        assert type(chunk) is CacheGenGPUBytestream
        check(chunk.bytestream, stream)
        check(chunk.bytestream_lengths, lengths)


# rows and calls at the edges


def test_zero_row_is_symbol_0_and_decodes_to_minus_zero() -> None:
    golden = Golden(EDGE)
    assert not golden.input[:, :, 3].any()
    payload = golden.encoded()
    assert not decode_symbols(payload)[:, 3].any()
    decoded = decode(payload, **golden.bins)
    assert not decoded[:, :, 3].any()
    assert np.signbit(decoded[:, :, 3]).all()
    assert (payload.key_maxima[:, 3] == 0).all()


def test_minus_zero_and_zero_encode_alike() -> None:
    values = np.zeros((2, 2, 3, 1, 4), dtype=np.float16)
    same_payload(encode(values, **lmcache_schedule(2)._asdict()), encode(-values, **lmcache_schedule(2)._asdict()))
    values[:, :, 1] = 1
    values[:, :, 1, :, 2] = 0
    other = values.copy()
    other[:, :, 1, :, 2] = -0.0
    assert other.tobytes() != values.tobytes()
    payload = encode(other, **lmcache_schedule(2)._asdict())
    same_payload(encode(values, **lmcache_schedule(2)._asdict()), payload)
    zeros = decode(payload, **lmcache_schedule(2)._asdict())[:, :, 1, :, 2]
    assert not np.signbit(zeros).any()
    assert not np.signbit(payload.key_maxima).any()


@pytest.mark.parametrize(("bins", "top"), [(32, 15), (16, 7)])
def test_ties_go_to_the_even_symbol(bins: int, top: int) -> None:
    row = np.arange(-2 * top, 2 * top + 1, dtype=np.float32) / 2  # the factor is exactly 1
    symbols, maxima = quantise(row[np.newaxis, np.newaxis], [bins])
    assert maxima.tolist() == [[top]]
    assert symbols[0, 0].tolist() == [
        2 * round((half / 2 + top) / 2) if half % 2 else half // 2 + top for half in range(-2 * top, 2 * top + 1)
    ]
    assert not (symbols[0, 0, 1::2] % 2).any()


@pytest.mark.parametrize("value_type", list(ValueType))
def test_one_token(value_type: ValueType) -> None:
    values = random_values((3, 2, 1, 1, 5), 1, value_type)
    payload = encode(values, **lmcache_schedule(3)._asdict())
    assert [chunk.n_tokens for chunk in payload.chunks] == [1]
    assert (payload.chunks[0].lengths == 1).all()
    assert (payload.chunks[0].stream == 0x40).all()
    decoded = widen(decode(payload, **lmcache_schedule(3)._asdict()))
    step = np.abs(widen(values)).max(axis=(3, 4), keepdims=True) / 15
    assert (np.abs(decoded - widen(values)) <= 0.52 * step).all()


def test_two_sub_chunks_share_one_table() -> None:
    golden = Golden(TWO_CHUNKS)
    payload = golden.encoded()
    assert [chunk.n_tokens for chunk in payload.chunks] == [256, 44]
    same(build_cdf(golden.load("symbols")), payload.cdf)
    first = encode(golden.input[:, :, :256], **golden.bins)
    assert first.cdf.tobytes() != payload.cdf.tobytes()


@pytest.mark.parametrize("n_tokens", [255, 256, 257, 512, 513, MAX_ENCODE_TOKENS])
def test_sub_chunk_sizes(n_tokens: int) -> None:
    values = random_values((1, 2, n_tokens, 1, 3), n_tokens)
    payload = payload_from_container(payload_to_container(encode(values, key_bins=[32], value_bins=[32])))
    assert [c.n_tokens for c in payload.chunks] == [256] * (n_tokens // 256) + [n_tokens % 256] * bool(n_tokens % 256)
    symbols, maxima = quantise(np.concatenate([values[:, 0], values[:, 1]]).reshape(2, n_tokens, 3), [32, 32])
    expected = dequantise(symbols, maxima, [32, 32], ValueType.FLOAT16).reshape(2, 1, n_tokens, 1, 3).swapaxes(0, 1)
    same(decode(payload, key_bins=[32], value_bins=[32]), np.ascontiguousarray(expected))


def test_largest_call_never_outgrows_a_stream() -> None:
    """The worst 256 tokens of 1,024: each of 31 symbols about equally often there, and rare elsewhere."""
    symbols = np.zeros((2, MAX_ENCODE_TOKENS, 4), dtype=np.uint8)
    symbols[:, :256] = (np.arange(256) % 30 + 1)[np.newaxis, :, np.newaxis]
    _, chunks = module._encode_symbols(symbols)
    assert 200 < chunks[0].lengths.max() <= 256


def test_16_bins_against_the_formula() -> None:
    values = random_values((12, 2, 5, 1, 6), 3)
    schedule = lmcache_schedule(12)
    payload = encode(values, **schedule._asdict())
    decoded = decode(payload, **schedule._asdict())
    for layer in range(12):
        for kind in range(2):
            c = np.float32((schedule.key_bins, schedule.value_bins)[kind][layer] // 2 - 1)
            for row, again in zip(values[layer, kind, :, 0], decoded[layer, kind, :, 0], strict=True):
                largest = np.float32(max(abs(x) for x in row))
                for x, y in zip(row, again, strict=True):
                    symbol = np.rint(np.float32(x) * (c / largest) + c)
                    assert y == np.float16((symbol - c) / c * largest)


def test_tiny_rows_decode_to_minus_their_maximum() -> None:
    values = np.full((1, 2, 1, 1, 2), 1e-38, dtype=np.float32)
    decoded = decode(encode(values, key_bins=[32], value_bins=[32]), key_bins=[32], value_bins=[32])
    assert (decoded == -values).all()


@pytest.mark.parametrize("n_layers", [1, 2, 9, 10, 28, 32, 40, 61])
def test_schedule(n_layers: int) -> None:
    schedule = lmcache_schedule(n_layers)
    small = n_layers < 10
    assert list(schedule.key_bins) == [32 if small or i < 10 else 16 for i in range(n_layers)]
    assert list(schedule.value_bins) == [32 if small or i < 2 else 16 for i in range(n_layers)]


@pytest.mark.parametrize("n_layers", [0, -1, 1025])
def test_schedule_refuses(n_layers: int) -> None:
    refused(CodecError, "ARGUMENT", lambda: lmcache_schedule(n_layers))


# the coder against its textbook form, one bit at a time


def textbook_stream(symbols: Sequence[int], table: Sequence[int]) -> bytes:
    low, high, n_pending, bits = 0, 2**32 - 1, 0, []

    def emit(bit: int) -> None:
        nonlocal n_pending
        bits.extend([bit, *[1 - bit] * n_pending])
        n_pending = 0

    for symbol in symbols:
        span = high - low + 1
        end = 65536 if symbol == 31 else table[symbol + 1]
        low, high = low + (span * table[symbol] >> 16), low + (span * end >> 16) - 1
        while True:
            if high < 2**31:
                emit(0)
            elif low >= 2**31:
                emit(1)
            elif low >= 2**30 and high < 3 * 2**30:
                n_pending += 1
                low, high = low - 2**30, high - 2**30
            else:
                break
            low, high = low * 2 % 2**32, (high * 2 + 1) % 2**32
    n_pending += 1
    emit(int(low >= 2**30))
    bits += [0] * (-len(bits) % 8)
    return bytes(int("".join(map(str, bits[i : i + 8])), 2) for i in range(0, len(bits), 8))


@st.composite
def coder_inputs(draw: st.DrawFn) -> tuple[Array, Array]:
    n_streams, n_tokens = draw(st.integers(1, 3)), draw(st.integers(1, 60))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    n_levels = draw(st.sampled_from([1, 2, 3, 15, 31, 32]))
    symbols = (rng.integers(0, n_levels, (n_streams, n_tokens)) ** draw(st.sampled_from([1, 1, 5])) % 32).astype(
        np.uint8
    )
    if draw(st.booleans()):  # tables that fit
        cdf = build_cdf(symbols.T[np.newaxis])[0]
    else:  # any tables, narrow ones too
        inner = [
            np.sort(rng.choice(np.arange(1, draw(st.sampled_from([40, 65535]))), 31, replace=False)) for _ in symbols
        ]
        cdf = np.array([[0, *row, 65535] for row in inner], dtype=np.uint16)
    return symbols, cdf


@settings(deadline=None, max_examples=300)
@given(coder_inputs(), st.sampled_from([0x00, 0xFF, 0xA5]))
def test_coder_equals_the_textbook(inputs: tuple[Array, Array], tail: int) -> None:
    symbols, cdf = inputs
    stream, lengths = encode_streams(symbols, cdf)
    parts = [textbook_stream(row.tolist(), table.tolist()) for row, table in zip(symbols, cdf, strict=True)]
    assert stream.tobytes() == b"".join(parts)
    assert lengths.tolist() == [len(part) for part in parts]
    same(decode_streams(stream, lengths, cdf, symbols.shape[1]), symbols)
    longer = np.frombuffer(b"".join(part + bytes([tail] * 5) for part in parts), dtype=np.uint8)
    same(decode_streams(longer, lengths + np.int32(5), cdf, symbols.shape[1]), symbols)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 12), st.integers(1, 40), st.integers(1, 2), st.integers(1, 5), st.integers(0, 2**32 - 1),
    st.sampled_from(list(ValueType)),
)  # fmt: skip
def test_round_trip(n_layers: int, n_tokens: int, n_heads: int, size: int, seed: int, value_type: ValueType) -> None:
    values = random_values((n_layers, 2, n_tokens, n_heads, size), seed, value_type)
    bins = lmcache_schedule(n_layers)._asdict()
    payload = encode(values, **bins)
    again = payload_from_container(payload_to_container(payload))
    same_payload(payload, again)
    decoded = decode(again, **bins)
    assert (decoded.shape, decoded.dtype) == (values.shape, values.dtype)
    largest = np.abs(widen(values)).max(axis=(3, 4), keepdims=True)
    c = np.array([bins["key_bins"], bins["value_bins"]]).T.reshape(n_layers, 2, 1, 1, 1) // 2 - 1
    assert (np.abs(widen(decoded) - widen(values)) <= 0.55 * largest / c).all()


# what encode refuses


@pytest.mark.parametrize("n_tokens", [MAX_ENCODE_TOKENS + 1, 2048])
def test_encode_refuses_calls_that_can_outgrow_a_stream(n_tokens: int) -> None:
    values = np.zeros((1, 2, n_tokens, 1, 1), dtype=np.float16)
    message = refused(EncodeError, "LIMIT", lambda: encode(values, key_bins=[32], value_bins=[32]))
    assert str(n_tokens) in message
    assert "256 bytes" in message


def test_encode_refuses_the_histogram_wrap() -> None:
    values = np.zeros((1, 2, 65536, 1, 1), dtype=np.float16)
    assert "65536" in refused(EncodeError, "LIMIT", lambda: encode(values, key_bins=[32], value_bins=[32]))


@pytest.mark.parametrize("value_type", list(ValueType))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [0, 1])
def test_encode_refuses_rows_that_are_not_finite(value_type: ValueType, bad: float, kind: int) -> None:
    values = np.ones((2, 2, 4, 1, 3), dtype=np.float32)
    values[1, kind, 2, 0, 1] = bad
    values = narrow(values, value_type)
    message = refused(EncodeError, "NON_FINITE", lambda: encode(values, **lmcache_schedule(2)._asdict()))
    assert f"layer 1 {'KV'[kind]}, token 2" in message


@pytest.mark.parametrize(
    "shape", [(1, 2, 0, 1, 1), (0, 2, 1, 1, 1), (1, 2, 1, 0, 1), (1, 2, 1, 1, 0), (1, 1, 1, 1, 1), (2, 1, 1, 1), ()]
)
def test_encode_refuses_empty_and_other_shapes(shape: tuple[int, ...]) -> None:
    refused(EncodeError, "ARGUMENT", lambda: encode(np.zeros(shape, np.float16), key_bins=[32], value_bins=[32]))


@pytest.mark.parametrize("dtype", ["float64", "int8", "uint8", "int16", "complex64", ">f2", "bool"])
def test_encode_refuses_other_dtypes(dtype: str) -> None:
    values = np.zeros((1, 2, 1, 1, 1), dtype=dtype)
    refused(EncodeError, "UNSUPPORTED", lambda: encode(values, key_bins=[32], value_bins=[32]))


@pytest.mark.parametrize(
    ("bins", "error", "status"),
    [
        ([32], EncodeError, "MISMATCH"),
        ([32, 32, 32], EncodeError, "MISMATCH"),
        ([32, 33], CodecError, "ARGUMENT"),
        ([32, 3], CodecError, "ARGUMENT"),
        ([32, 16.0], CodecError, "ARGUMENT"),
        ([16, 16], CodecError, "ARGUMENT"),
    ],
)
def test_encode_refuses_bins(bins: list[int], error: type[CodecError], status: str) -> None:
    values = np.ones((2, 2, 1, 1, 1), dtype=np.float16)
    refused(error, status, lambda: encode(values, key_bins=bins, value_bins=[32, 32]))
    refused(error, status, lambda: encode(values, key_bins=[32, 32], value_bins=bins))


# what decode refuses


def small_payload() -> CacheGenPayload:
    return encode(random_values((2, 2, 4, 1, 3), 5), **lmcache_schedule(2)._asdict())


def with_chunk(payload: CacheGenPayload, **changes: Any) -> CacheGenPayload:
    return dataclasses.replace(payload, chunks=(dataclasses.replace(payload.chunks[0], **changes),))


def changed(array: Array, index: Any, value: Any) -> Array:
    array = array.copy()
    array[index] = value
    return array


def drifting_payload(n_tokens: int) -> CacheGenPayload:
    """A call whose first 256 tokens are unlike the rest, as LMCache would encode it with room for any stream."""
    symbols = np.full((2, n_tokens, 3), 30, dtype=np.uint8)
    symbols[:, :256] = (np.arange(256) % 30)[np.newaxis, :, np.newaxis]
    symbols[:, :256, 0] = 30
    cdf, chunks = module._encode_symbols(symbols)
    maxima = np.ones((1, n_tokens), dtype=np.float16)
    return CacheGenPayload(1, 3, ValueType.FLOAT16, cdf, maxima, maxima, chunks)


def test_decode_takes_larger_calls_whose_streams_survived() -> None:
    payload = drifting_payload(1536)
    assert payload.chunks[0].lengths.max() <= 256
    assert decode(payload, key_bins=[32], value_bins=[32]).shape == (1, 2, 1536, 1, 3)


def test_decode_refuses_streams_that_outgrew_their_place() -> None:
    payload = drifting_payload(4096)
    chunk = payload.chunks[0]
    assert chunk.lengths.max() > 256
    assert "256" in refused(ArchiveError, "GEOMETRY", lambda: check_payload(payload))
    refused(ArchiveError, "GEOMETRY", lambda: payload_to_container(payload))
    # cut to 256 bytes, as by LMCache on a CPU
    parts = np.split(chunk.stream, np.cumsum(chunk.lengths.ravel())[:-1])
    cut = SubChunk(256, np.minimum(chunk.lengths, 256).astype(np.int32), np.concatenate([part[:256] for part in parts]))
    damaged = dataclasses.replace(payload, chunks=(cut, *payload.chunks[1:]))
    check_payload(damaged)
    refused(ArchiveError, "STREAM", lambda: decode(damaged, key_bins=[32], value_bins=[32]))


def test_decode_refuses_the_histogram_wrap() -> None:
    maxima = np.ones((1, 65536), dtype=np.float16)
    payload = dataclasses.replace(small_payload(), key_maxima=maxima, value_maxima=maxima)
    assert "65536" in refused(ArchiveError, "LIMIT", lambda: check_payload(payload))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0, -0.0])
def test_decode_refuses_maxima_that_are_none(bad: float) -> None:
    payload = small_payload()
    for name, letter in (("key_maxima", "K"), ("value_maxima", "V")):
        damaged = dataclasses.replace(payload, **{name: changed(getattr(payload, name), (1, 2), bad)})
        assert f"layer 1 {letter}, token 2" in refused(ArchiveError, "NON_FINITE", lambda p=damaged: check_payload(p))
        refused(ArchiveError, "NON_FINITE", lambda p=damaged: payload_to_container(p))


def test_decode_refuses_tables() -> None:
    payload = small_payload()
    for index, value in [((3, 2, 0), 1), ((3, 2, 32), 65534), ((3, 2, 7), payload.cdf[3, 2, 6])]:
        damaged = dataclasses.replace(payload, cdf=changed(payload.cdf, index, value))
        assert "plane 3, channel 2" in refused(ArchiveError, "TABLE", lambda p=damaged: check_payload(p))


def test_decode_refuses_parts_that_do_not_fit() -> None:
    payload = small_payload()
    chunk = payload.chunks[0]
    empty = np.zeros((2, 0), dtype=np.float16)
    for damaged in (
        dataclasses.replace(payload, n_heads=0),
        dataclasses.replace(payload, n_heads=2),
        dataclasses.replace(payload, head_size=-3),
        dataclasses.replace(payload, n_heads=1 << 21),
        dataclasses.replace(payload, key_maxima=payload.key_maxima[:1]),
        dataclasses.replace(payload, value_maxima=payload.value_maxima[:, :3]),
        dataclasses.replace(payload, value_maxima=payload.value_maxima.astype(np.float32)),
        dataclasses.replace(payload, key_maxima=empty, value_maxima=empty),
        dataclasses.replace(payload, value_type=ValueType.BFLOAT16),
        dataclasses.replace(payload, cdf=payload.cdf[..., :32]),
        dataclasses.replace(payload, cdf=payload.cdf.astype(np.int32)),
        dataclasses.replace(payload, chunks=()),
        dataclasses.replace(payload, chunks=(chunk, chunk)),
        with_chunk(payload, n_tokens=3),
        with_chunk(payload, n_tokens=0),
        with_chunk(payload, stream=chunk.stream[:-1]),
        with_chunk(payload, stream=chunk.stream.astype(np.int16)),
        with_chunk(payload, lengths=chunk.lengths[:3]),
        with_chunk(payload, lengths=chunk.lengths.astype(np.int64)),
        with_chunk(payload, lengths=changed(chunk.lengths, (0, 0), 0)),
        with_chunk(payload, lengths=changed(chunk.lengths, (0, 0), -1)),
        with_chunk(payload, lengths=changed(chunk.lengths, (0, 0), 257)),
    ):
        refused(ArchiveError, "GEOMETRY", lambda p=damaged: check_payload(p))
        refused(ArchiveError, "GEOMETRY", lambda p=damaged: decode(p, **lmcache_schedule(2)._asdict()))
        refused(ArchiveError, "GEOMETRY", lambda p=damaged: payload_to_container(p))


def test_decode_finds_every_flipped_bit_of_a_stream() -> None:
    payload = small_payload()
    stream = payload.chunks[0].stream
    for bit in range(8 * len(stream)):
        damaged = with_chunk(payload, stream=changed(stream, bit // 8, stream[bit // 8] ^ (0x80 >> bit % 8)))
        message = refused(ArchiveError, "STREAM", lambda p=damaged: decode_symbols(p))
        plane, channel = divmod(int(np.searchsorted(np.cumsum(payload.chunks[0].lengths), bit // 8, side="right")), 3)
        assert f"layer {plane % 2} {'KKVV'[plane]}, channel {channel}:" in message


def test_decode_refuses_other_bins() -> None:
    payload = encode(random_values((12, 2, 4, 1, 8), 6), **lmcache_schedule(12)._asdict())
    refused(UnsupportedArchiveError, "MISMATCH", lambda: decode(payload, key_bins=[32] * 12, value_bins=[32] * 12))
    refused(UnsupportedArchiveError, "MISMATCH", lambda: decode(payload, **lmcache_schedule(11)._asdict()))
    refused(CodecError, "ARGUMENT", lambda: decode(payload, key_bins=[16] * 12, value_bins=[32] * 12))


def test_decode_refuses_a_zero_maximum_of_other_values() -> None:
    payload = small_payload()
    damaged = dataclasses.replace(payload, key_maxima=changed(payload.key_maxima, (0, 1), 0))
    assert "token 1" in refused(ArchiveError, "TABLE", lambda: decode(damaged, **lmcache_schedule(2)._asdict()))


def test_decode_to_another_type() -> None:
    values = np.array([1.0, -65536.0], dtype=np.float32).reshape(1, 1, 1, 1, 2).repeat(2, axis=1)
    payload = encode(values, key_bins=[32], value_bins=[32])
    bits = decode(payload, key_bins=[32], value_bins=[32], value_type=ValueType.BFLOAT16)
    assert widen(bits).ravel().tolist() == [0.0, -65536.0] * 2
    refused(
        UnsupportedArchiveError,
        "MISMATCH",
        lambda: decode(payload, key_bins=[32], value_bins=[32], value_type=ValueType.FLOAT16),
    )


# hostile containers


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def name(module_name: str, attribute: str) -> bytes:
    return text(module_name) + text(attribute) + b"\x93"


BASICS = "lmcache.storage_backend.serde.cachegen_basics"
OUTPUT = name(BASICS, "CacheGenGPUEncoderOutput")
LOAD = name("torch.storage", "_load_from_bytes")
ALLOWED = [
    (BASICS, "CacheGenGPUEncoderOutput"),
    (BASICS, "CacheGenGPUBytestream"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch.storage", "_load_from_bytes"),
    ("collections", "OrderedDict"),
]
FORBIDDEN = [
    ("os", "system"),
    ("posix", "system"),
    ("builtins", "eval"),
    ("builtins", "exec"),
    ("__builtin__", "eval"),
    ("builtins", "getattr"),
    ("builtins", "__import__"),
    ("subprocess", "Popen"),
    ("importlib", "import_module"),
    ("operator", "attrgetter"),
    ("copyreg", "_reconstructor"),
    ("pickle", "loads"),
    ("torch", "load"),
    ("torch", "HalfStorage"),
    ("torch", "_utils._rebuild_tensor_v2"),
    ("torch.storage", "_load_from_bytes.__globals__"),
    ("torch._utils", "_rebuild_tensor"),
    ("collections", "OrderedDict.__init__"),
    ("collections", "ordereddict"),
    (BASICS, "CacheGenGPUEncoderOutput.from_bytes"),
    (BASICS, "pickle.loads"),
    (BASICS + ".", "CacheGenGPUEncoderOutput"),
    ("", ""),
]


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "executed"


class Hostile:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_executed(canary: Path, protocol: int) -> None:
    attacks = [
        Hostile(os.system, f"touch {canary}"),
        Hostile(eval, f"open({str(canary)!r}, 'w')"),
        Hostile(exec, f"open({str(canary)!r}, 'w')"),
        Hostile(getattr, Hostile(__import__, "os"), "system"),
        [Hostile(OrderedDict), {"a": (Hostile(os.system, f"touch {canary}"),)}],
    ]
    for attack in attacks:
        with pytest.raises((ArchiveError, UnsupportedArchiveError)):
            payload_from_container(pickle.dumps(attack, protocol=protocol))
    assert not canary.exists()
    pickle.loads(pickle.dumps(attacks[0], protocol=protocol))
    assert canary.exists(), "the attack is none"


@pytest.mark.parametrize("forbidden", FORBIDDEN)
def test_no_other_global_can_be_named(forbidden: tuple[str, str]) -> None:
    module_name, attribute = forbidden
    as_lines = f"c{module_name}\n{attribute}\n".encode()
    remembered = text(module_name) + b"\x940" + text(attribute) + b"\x94"
    for way in (
        name(module_name, attribute),
        as_lines,
        text(module_name) + b"q\x07" + text(attribute) + b"q\x09" + b"\x93",
        text(module_name) + b"\x94" + text(attribute) + b"\x94" + b"h\x00h\x01\x93",
        LOAD + b"(" + name(module_name, attribute) + text("x") + b"\x85Rt" + b"R",  # as an argument of an allowed call
        OUTPUT + b")\x81}(" + text("cdf") + as_lines + b"ub",  # as an attribute of an allowed instance
        b"](" + as_lines + b"e",
        name(module_name, attribute) + b")R",
        name(module_name, attribute) + b")\x81",
    ):
        message = refused(ArchiveError, "MAGIC", lambda w=way: payload_from_container(b"\x80\x04" + w + b"."))
        assert "it names " in message
        assert "do not unpickle it" in message
    refused(ArchiveError, "MAGIC", lambda: payload_from_container(b"\x80\x04" + remembered + b"."))


@pytest.mark.parametrize("allowed", ALLOWED)
def test_allowed_globals_are_only_names(allowed: tuple[str, str]) -> None:
    assert Global(*allowed) in module._CONTAINER_GLOBALS
    assert len(module._CONTAINER_GLOBALS) == len(ALLOWED)
    for body in (name(*allowed), name(*allowed) + b")R", name(*allowed) + b")\x81", name(*allowed) + b")\x81}b"):
        refused(ArchiveError, "MAGIC", lambda b=body: payload_from_container(b"\x80\x04" + b + b"."))


def replaced_storage(inner: bytes) -> bytes:
    """A container in which the storage of the first tensor is something else."""
    ours = payload_to_container(small_payload())
    stored = module._storage_file("ByteStorage", small_payload().chunks[0].stream)
    assert ours.count(module._pickled_bytes(stored)) == 1
    return ours.replace(module._pickled_bytes(stored), module._pickled_bytes(inner))


def test_a_storage_cannot_name_other_globals(canary: Path) -> None:
    attack = pickle.dumps(Hostile(os.system, f"touch {canary}"), protocol=2)
    magic = b"\x80\x02\x8a\x0a" + (0x1950A86A20F9469CFC6C).to_bytes(10, "little") + b"."
    for inner in (
        attack,
        magic + attack,
        magic + b"\x80\x02M\xe9\x03." + attack,
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x02ccollections\nOrderedDict\n.",
        b"\x80\x02ctorch.storage\n_load_from_bytes\n.",
    ):
        refused(ArchiveError, "MAGIC", lambda i=inner: payload_from_container(replaced_storage(i)))
    assert not canary.exists()


@pytest.mark.parametrize("opcode", sorted(set(range(256)) - set(Reader._INSTRUCTIONS) - {ord(".")}))
def test_other_instructions_are_refused(opcode: int) -> None:
    body = b"\x80\x04" + b"(NNNN" + bytes([opcode]) + b"\x00" * 16 + b"."
    assert f"0x{opcode:02x}" in refused(ArchiveError, "MAGIC", lambda: payload_from_container(body))


def test_dangerous_instructions_are_unknown() -> None:
    # INST, OBJ, NEWOBJ_EX, EXT1, EXT2, EXT4, BINPERSID's text form, DUP, POP, LONG4, NEXT_BUFFER, READONLY_BUFFER
    for opcode in (*b"ioP20", 0x92, 0x82, 0x83, 0x84, 0x8B, 0x97, 0x98):
        assert opcode not in Reader._INSTRUCTIONS


def endless(n: int) -> bytes:
    """Lists of two times the list before: 2**n values if one walks it."""
    return b"]\x94" + b"".join(b"](h" + bytes([i]) + b"h" + bytes([i]) + b"e\x94" for i in range(n))


@pytest.mark.parametrize(
    "body",
    [
        b"]\x94h\x00a",  # a list that contains itself
        b"]\x94(h\x00h\x00e",
        b"}\x94" + text("a") + b"h\x00s",
        OUTPUT + b")\x81\x94}(" + text("cdf") + b"h\x00ub",
        OUTPUT + b")\x81}\x94" + text("cdf") + b"h\x00sb",
        OUTPUT + b")\x81}b}b",  # attributes twice
        OUTPUT + b"N\x81",
        OUTPUT + b"]\x81",
        OUTPUT + b")\x81Nb",
        OUTPUT + b")\x81]b",
        OUTPUT + b")\x81}(" + text("__class__") + b"Nub",
        OUTPUT + b")\x81)R",  # a call of an instance
        LOAD + b")R)R",  # a call of a call
        LOAD + b"]R",
        text("os") + b")R",
        b"(R",
        b"(",
        b"h\x05",
        b"j\xff\xff\xff\xff",
        b"r\xff\xff\xff\xff",
        b"t",
        b"e",
        b"]NR",
        b"}(N",
        b"}(NNu",
        b"}(KKu",
        b"}(" + text("a") + b"N" + text("a") + b"Nu",
        b"N\x93",
        b"NN\x93",
        b"NN",
        b"",
        b"Q",
        b"NQ",
        b"\x8c\x02\xff\xff",
        b"X\xff\xff\xff\xff",
        b"X\x01\x01\x00\x00" + b"a" * 257,
        b"\x8a\xff" + b"a" * 255,
        b"c" + b"a" * 300 + b"\nb\n",
        b"\x95" + struct.pack("<Q", 2) + b"K\x01N",
        b"\x95" + struct.pack("<Q", 1) + b"K\x01",
        endless(60),
        endless(60) + b"\x85",
        b")" + b"\x85" * 50_000,
        b"N" + b"Q" * 50_000,
        b"]" * 2000,
    ],
    ids=lambda body: body[:12].hex(),
)
def test_crafted_pickles_are_refused_in_time(body: bytes) -> None:
    began = time.monotonic()
    with pytest.raises((ArchiveError, UnsupportedArchiveError)):
        payload_from_container(b"\x80\x04" + body + b".")
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"N" * 5000, "LIMIT"),
        (b")" + b"\x85" * 100_001, "LIMIT"),
        (b"N" + b"\x94" * 70_000, "LIMIT"),
        (b"\x8e" + struct.pack("<Q", 2**64 - 1), "TRUNCATED"),
        (b"B\xff\xff\xff\xff", "TRUNCATED"),
        (b"\x95" + struct.pack("<Q", 2**63), "TRUNCATED"),
    ],
)
def test_limits(body: bytes, status: str) -> None:
    refused(ArchiveError, status, lambda: payload_from_container(b"\x80\x04" + body + b"."))


def test_a_storage_takes_bounded_time() -> None:
    """One storage may be named by hundreds of tensors; each reads it again."""
    stored = module._storage_file("ByteStorage", small_payload().chunks[0].stream)
    end = stored.index(b".")
    assert end == 14
    same_payload(
        payload_from_container(replaced_storage(stored[:end] + b"q\x00" * 800 + stored[end:])), small_payload()
    )
    long = replaced_storage(stored[:end] + b"q\x00" * 90_000 + stored[end:])
    assert "1000" in refused(ArchiveError, "LIMIT", lambda: payload_from_container(long))


def tensor_container(**changes: bytes) -> bytes:
    """A container whose probability tables have another offset, size or stride."""
    ours = payload_to_container(small_payload())
    stored = module._pickled_bytes(module._storage_file("ShortStorage", small_payload().cdf.view(np.int16)))
    begin = ours.index(stored) + len(stored)
    number = module._pickled_int
    parts = {
        "offset": number(0),
        "size": module._pickled_tuple([number(n) for n in (4, 3, 33)]),
        "stride": module._pickled_tuple([number(n) for n in (99, 33, 1)]),
    }
    before = b"tR" + b"".join(parts.values())
    assert ours[begin : begin + len(before)] == before
    return ours[:begin] + b"tR" + b"".join({**parts, **changes}.values()) + ours[begin + len(before) :]


@pytest.mark.parametrize(
    ("part", "numbers"),
    [
        ("offset", [1]),
        ("offset", [-1]),
        ("offset", [2**63]),
        ("size", [4, 3, 34]),
        ("size", [0, 3, 33]),
        ("size", [-4, -3, 33]),
        ("size", [2**31, 2**31, 33]),
        ("size", [12, 33]),
        ("stride", [99, 33, 2**62]),
        ("stride", [0, 0, 0]),
        ("stride", [-99, 33, 1]),
        ("stride", [99, 33]),
    ],
)
def test_tensors_stay_in_their_storage(part: str, numbers: list[int]) -> None:
    assert payload_from_container(tensor_container()) is not None
    pickled = [module._pickled_int(n) for n in numbers]
    value = pickled[0] if part == "offset" else module._pickled_tuple(pickled)
    refused(ArchiveError, "GEOMETRY", lambda: payload_from_container(tensor_container(**{part: value})))


def test_a_tensor_may_be_strided() -> None:
    """As a transposed one is; torch keeps it so."""
    size = module._pickled_tuple([module._pickled_int(n) for n in (3, 4, 33)])
    stride = module._pickled_tuple([module._pickled_int(n) for n in (33, 99, 1)])
    message = refused(
        ArchiveError, "GEOMETRY", lambda: payload_from_container(tensor_container(size=size, stride=stride))
    )
    assert "[3, 4, 33], not [4, 3, 33]" in message


def test_other_versions_and_types_are_unsupported() -> None:
    golden = Golden(ONE_TOKEN).container
    for protocol in (0, 1, 2, 3, 6, 255):
        other = golden[:1] + bytes([protocol]) + golden[2:]
        refused(UnsupportedArchiveError, "VERSION", lambda o=other: payload_from_container(o))
    for old, new in ((b"HalfStorage", b"LongStorage"), (b"HalfStorage", b"BoolStorage")):
        other = golden.replace(old, new)
        refused(UnsupportedArchiveError, "UNSUPPORTED", lambda o=other: payload_from_container(o))
    big = golden.replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89")
    assert big != golden
    assert "big-endian" in refused(UnsupportedArchiveError, "UNSUPPORTED", lambda: payload_from_container(big))


@pytest.mark.parametrize("device", [b"cuda:0", b"npu:12", b"cpu"])
def test_tensors_of_any_device_are_read(device: bytes) -> None:
    key = b"X\x03\x00\x00\x00cpu"
    stored = module._storage_file("ByteStorage", small_payload().chunks[0].stream)
    assert stored.count(key) == 1
    there = stored.replace(key, b"X" + struct.pack("<I", len(device)) + device)
    same_payload(payload_from_container(replaced_storage(there)), small_payload())


def test_trailing_bytes() -> None:
    golden = Golden(ONE_TOKEN).container
    refused(ArchiveError, "TRAILING", lambda: payload_from_container(golden + b"\x00"))
    refused(ArchiveError, "TRAILING", lambda: payload_from_container(golden + golden))
    stored = module._storage_file("ByteStorage", small_payload().chunks[0].stream)
    refused(ArchiveError, "TRAILING", lambda: payload_from_container(replaced_storage(stored + b"\x00")))


# damage


def read_and_decode(data: bytes) -> str:
    """What became of it: a value, or which typed error. Any other exception is a failure of the test."""
    try:
        payload = payload_from_container(data)
        decode(payload, **lmcache_schedule(payload.n_layers)._asdict())
    except (ArchiveError, UnsupportedArchiveError) as error:
        return error.status_name
    return "a value"


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "theirs"])
def test_every_truncation_is_an_error(ours: bool) -> None:
    golden = Golden(ONE_TOKEN)
    data = payload_to_container(golden.encoded()) if ours else golden.container
    for n_bytes in range(len(data)):
        with pytest.raises(ArchiveError) as caught:
            payload_from_container(data[:n_bytes])
        assert caught.value.status_name == "ERR_TRUNCATED", n_bytes


@pytest.mark.parametrize("flip", [0xFF, 0x01, 0x20])
def test_every_flipped_byte_is_an_error_or_a_value(flip: int) -> None:
    golden = Golden(ONE_TOKEN)
    outcomes: dict[str, int] = {}
    for i, byte in enumerate(golden.container):
        outcome = read_and_decode(golden.container[:i] + bytes([byte ^ flip]) + golden.container[i + 1 :])
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    # memory addresses, names in the storages' headers and maxima carry no redundancy; the rest does
    assert outcomes.pop("a value") < 700
    assert set(outcomes) <= {
        "ERR_" + s
        for s in [
            "TRUNCATED",
            "TRAILING",
            "MAGIC",
            "VERSION",
            "GEOMETRY",
            "TABLE",
            "STREAM",
            "LIMIT",
            "NON_FINITE",
            "UNSUPPORTED",
            "MISMATCH",
        ]
    }


def test_every_flipped_bit_of_a_small_container() -> None:
    payload = encode(random_values((1, 2, 1, 1, 1), 9), key_bins=[32], value_bins=[32])
    data = payload_to_container(payload)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        read_and_decode(bytes(damaged))


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    for start in (b"", b"\x80\x04", b"\x80\x04" + OUTPUT + b")\x81}("):
        with pytest.raises((ArchiveError, UnsupportedArchiveError)):
            payload_from_container(start + data)


def test_zero_length() -> None:
    refused(ArchiveError, "TRUNCATED", lambda: payload_from_container(b""))


def test_the_readers_values_are_inert() -> None:
    allowed = [Global("a", "f"), Global("a", "C")]
    body = b"\x80\x04ca\nf\nN\x85Rca\nC\n)\x81}" + text("x") + b"K\x05sb" + text("id") + b"Q\x87."
    call, instance, reference = Reader(body, "test", allowed, (4,)).read()
    assert call == Call(allowed[0], (None,))
    assert type(instance) is Instance
    assert (instance.cls, instance.state) == (allowed[1], {"x": 5})
    assert reference == PersistentId("id")


# the document


def test_the_documents_example_is_the_fixture() -> None:
    data = Golden(ONE_TOKEN).container
    section = DOCUMENT.read_text(encoding="utf-8").partition("## Worked example")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| ((?:[0-9A-F]{2} ?)+)(…)? \|", section, re.MULTILINE)
    assert len(rows) >= 20
    end = 0
    for offset, digits, is_cut in rows:
        begin, shown = int(offset), bytes.fromhex(digits)
        assert data[begin : begin + len(shown)] == shown, offset
        assert begin >= end
        end = begin + len(shown) if not is_cut else begin
    assert end == len(data)


# timed as a peer of a qualification


def _peer_planes(n_tokens: int = 300) -> list[Plane]:
    rng = np.random.default_rng(3)
    return [
        Plane(rng.normal(size=(n_tokens, 32)).astype(np.float16), GgmlType.F16, 32, layer=layer, kind=kind)
        for layer in range(2)
        for kind in (Kind.K, Kind.V)
    ]


def _pretend(folder: Path, body: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_peer_is_not_timed_without_lmcache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planes = _peer_planes()
    n_bytes = lmcache_calls(planes, 2)
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    assert time_lmcache(planes, 2, n_bytes) == (
        [],
        [],
        f"not timed: {PYTHON_VARIABLE} names no Python that has LMCache",
    )
    for python, words in (
        (str(tmp_path / "gone"), "No such file"),
        (_pretend(tmp_path, "echo no torch >&2; exit 3"), "LMCache ended with status 3: no torch"),
        (sys.executable, "LMCache ended with status 1: ModuleNotFoundError: No module named 'torch'"),
    ):
        monkeypatch.setenv(PYTHON_VARIABLE, python)
        times = time_lmcache(planes, 2, n_bytes)
        assert (times.encode_ms, times.decode_ms) == ([], []) and words in times.note


def test_peer_times_are_of_the_same_codec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls of at most 256 tokens; times count only if the containers' sizes are the reference's."""
    planes = _peer_planes()
    n_bytes = lmcache_calls(planes, 2)
    told = f'echo \'{{"version": "9", "n_bytes": {n_bytes + 40}, "encode_ms": 5.5, "decode_ms": 2.5}}\''
    monkeypatch.setenv(PYTHON_VARIABLE, _pretend(tmp_path, f'ls "$2" > "{tmp_path}/calls"; {told}'))
    times = time_lmcache(planes, 2, n_bytes)
    assert times[:2] == ([5.5], [2.5]) and times.note.startswith("times by LMCache 9 itself on the processor")
    assert (tmp_path / "calls").read_text().split() == ["call-00000.npy", "call-00001.npy"]
    times = time_lmcache(planes, 2, n_bytes - 1000)
    assert times[:2] == ([], []) and "its containers have" in times.note
    monkeypatch.setattr(lmcache_peer, "_MOST_VALUES", 1000)
    assert "values take LMCache's path for processors minutes" in time_lmcache(planes, 2, n_bytes).note


LMCACHE_PYTHON = ROOT / "build" / "lmcache-venv" / "bin" / "python"


@pytest.mark.skipif(not LMCACHE_PYTHON.exists(), reason="no LMCache here; scripts/check-lmcache installs it")
@pytest.mark.parametrize("type_", [GgmlType.F16, GgmlType.F32, GgmlType.BF16])
def test_peer_by_lmcache_itself(monkeypatch: pytest.MonkeyPatch, type_: GgmlType) -> None:
    monkeypatch.setenv(PYTHON_VARIABLE, str(LMCACHE_PYTHON))
    make: dict[GgmlType, Callable[[Array], Array]] = {
        GgmlType.F16: lambda values: values,
        GgmlType.F32: lambda values: values.astype(np.float32),
        GgmlType.BF16: lambda values: (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
    }
    planes = [dataclasses.replace(plane, data=make[type_](plane.data), type=type_) for plane in _peer_planes()]
    times = time_lmcache(planes, 2, lmcache_calls(planes, 2))
    assert times.note.startswith("times by LMCache 0.5.6 itself"), times.note
    assert times.encode_ms[0] > 0 and times.decode_ms[0] > 0
