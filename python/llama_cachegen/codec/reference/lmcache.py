"""A whole serde call of LMCache 0.5.6: values to payload to container, and back.

CacheGen is by Y. Liu et al. (SIGCOMM '24, arXiv 2310.07240). Of it LMCache does the quantising by layer (`quantizer`,
`schedule`) and the arithmetic coding with a table for every layer and channel (`cdf`, `arithmetic`), not the deltas
between tokens. docs/formats/lmcache-container.md describes the bytes.
"""

from __future__ import annotations

import dataclasses
import math
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import CodecError
from ._status import argument_error, bad_archive, cannot_encode, unsupported
from .arithmetic import decode_streams, encode_streams
from .cdf import MAX_TOKENS, N_ENTRIES, N_SYMBOLS, build_cdf, check_cdf
from .quantizer import ValueType, centre, dequantise, quantise, widen
from .restricted_pickle import Call, Global, Instance, PersistentId, Reader
from .schedule import MAX_LAYERS

__all__ = [
    "MAX_ENCODE_TOKENS",
    "CacheGenPayload",
    "SubChunk",
    "check_payload",
    "decode",
    "decode_symbols",
    "encode",
    "payload_from_container",
    "payload_to_container",
]

SUB_CHUNK_TOKENS = 256
MAX_STREAM_BYTES = 256
MAX_ENCODE_TOKENS = 1024
"""LMCache gives a stream 256 bytes and does not look whether they suffice; up to here they always do."""
MAX_CHANNELS = 1 << 20
MAX_VALUES = 1 << 31
MIN_BINS, MAX_BINS = 4, N_SYMBOLS


@dataclasses.dataclass(frozen=True, eq=False)
class SubChunk:
    """Up to 256 tokens of a call: every stream starts anew here.

    Attributes:
        n_tokens: tokens.
        lengths: int32 [2L, C], bytes of every stream, 1 to 256.
        stream: uint8, the streams one after another, plane by plane, channel fastest.
    """

    n_tokens: int
    lengths: NDArray[np.int32]
    stream: NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, eq=False)
class CacheGenPayload:
    """What LMCache keeps of one call: L layers, T tokens, C = n_heads * head_size channels.

    Its planes are K of all layers, then V of all layers. The bins are not part of it: whoever decodes has to know them.

    Attributes:
        n_heads: KV heads.
        head_size: channels of one.
        value_type: type of the maxima, which is that of the encoded values.
        cdf: uint16 [2L, C, 33], the probability tables.
        key_maxima: [L, T], the largest magnitude of every row of K; bfloat16 as uint16.
        value_maxima: [L, T], of V.
        chunks: sub-chunks of 256 tokens, the last one of the rest.
    """

    n_heads: int
    head_size: int
    value_type: ValueType
    cdf: NDArray[np.uint16]
    key_maxima: NDArray[Any]
    value_maxima: NDArray[Any]
    chunks: tuple[SubChunk, ...]

    @property
    def n_layers(self) -> int:
        """L."""
        return int(self.key_maxima.shape[0])

    @property
    def n_tokens(self) -> int:
        """T."""
        return int(self.key_maxima.shape[1])

    @property
    def n_channels(self) -> int:
        """C."""
        return self.n_heads * self.head_size


def _plane_name(plane: int, n_layers: int) -> str:
    return f"layer {plane % n_layers} {'K' if plane < n_layers else 'V'}"


def _plane_bins(
    n_layers: int, key_bins: Sequence[int], value_bins: Sequence[int], mismatch: Callable[[str, str], CodecError]
) -> list[int]:
    """The bins of all planes; mismatch makes the error for a wrong number of layers."""
    for name, bins in (("key_bins", key_bins), ("value_bins", value_bins)):
        if len(bins) != n_layers:
            raise mismatch("MISMATCH", f"{name} is for {len(bins)} layers, there are {n_layers}; give one number each")
        if not all(isinstance(n, (int, np.integer)) and MIN_BINS <= n <= MAX_BINS for n in bins):
            raise argument_error(f"{name} has a number that is not a whole one from {MIN_BINS} to {MAX_BINS}")
        if max(bins) != MAX_BINS:
            raise argument_error(
                f"{name} has {max(bins)} bins at most; without a layer of {MAX_BINS} LMCache's tables have another size"
            )
    return [int(n) for n in (*key_bins, *value_bins)]


# encoding


def encode(kv: NDArray[Any], *, key_bins: Sequence[int], value_bins: Sequence[int]) -> CacheGenPayload:
    """Encode the KV cache of some tokens as LMCache does in one call.

    Args:
        kv: [L, 2, T, H, D]: layers, K and V, tokens, heads, channels of a head; float16, float32, or uint16 with the
            bits of bfloat16. Finite; 1 to 1,024 tokens.
        key_bins: bins of K in every layer, 4 to 32, at least one 32: see `lmcache_schedule`.
        value_bins: bins of V likewise.

    Raises:
        EncodeError: no tokens or wrong shape (ERR_ARGUMENT), another dtype (ERR_UNSUPPORTED), a NaN or an infinity
            (ERR_NON_FINITE), more tokens than LMCache encodes without damage (ERR_LIMIT), bins for another number of
            layers (ERR_MISMATCH).
        CodecError: bins out of range (ERR_ARGUMENT).
    """
    if kv.ndim != 5 or kv.shape[1] != 2 or 0 in kv.shape:
        raise cannot_encode(
            "ARGUMENT", f"values of shape {list(kv.shape)}; [layers, 2, tokens, heads, head size] is needed"
        )
    n_layers, _, n_tokens, n_heads, head_size = kv.shape
    n_channels = n_heads * head_size
    try:
        value_type = ValueType.of(kv.dtype)
    except ValueError as error:
        raise cannot_encode("UNSUPPORTED", f"values of dtype {error}; convert them first") from None
    if n_tokens > MAX_TOKENS:
        raise cannot_encode("LIMIT", f"{n_tokens} tokens in one call; LMCache's histogram wraps at 65536: split them")
    if n_tokens > MAX_ENCODE_TOKENS:
        raise cannot_encode(
            "LIMIT",
            f"{n_tokens} tokens in one call; above {MAX_ENCODE_TOKENS} a stream may outgrow"
            f" the {MAX_STREAM_BYTES} bytes that LMCache has for it: split them",
        )
    if n_layers > MAX_LAYERS or n_channels > MAX_CHANNELS or kv.size > MAX_VALUES:
        raise cannot_encode("LIMIT", f"{n_layers} layers of {n_tokens} x {n_channels} values are too much for one call")
    plane_bins = _plane_bins(n_layers, key_bins, value_bins, cannot_encode)

    planes = np.concatenate([kv[:, 0], kv[:, 1]]).reshape(2 * n_layers, n_tokens, n_channels)
    for plane in range(2 * n_layers):
        is_bad = ~np.isfinite(widen(planes[plane])).all(axis=1)
        if is_bad.any():
            where = f"{_plane_name(plane, n_layers)}, token {int(is_bad.argmax())}"
            raise cannot_encode("NON_FINITE", f"{where}: a NaN or an infinity, which would spoil the token's whole row")

    symbols, maxima = quantise(planes, plane_bins)
    cdf, chunks = _encode_symbols(symbols)
    for chunk in chunks:
        if chunk.lengths.max() > MAX_STREAM_BYTES:
            raise cannot_encode(
                "LIMIT", f"a stream of {chunk.lengths.max()} bytes; LMCache has room for {MAX_STREAM_BYTES}"
            )
    return CacheGenPayload(
        n_heads=n_heads,
        head_size=head_size,
        value_type=value_type,
        cdf=cdf,
        key_maxima=maxima[:n_layers],
        value_maxima=maxima[n_layers:],
        chunks=chunks,
    )


def _chunk_sizes(n_tokens: int) -> list[int]:
    return [min(SUB_CHUNK_TOKENS, n_tokens - begin) for begin in range(0, n_tokens, SUB_CHUNK_TOKENS)]


def _encode_symbols(symbols: NDArray[np.uint8]) -> tuple[NDArray[np.uint16], tuple[SubChunk, ...]]:
    """The tables and sub-chunks of symbols [P, T, C]."""
    n_planes, n_tokens, n_channels = symbols.shape
    cdf = build_cdf(symbols)
    chunks = []
    for begin in range(0, n_tokens, SUB_CHUNK_TOKENS):
        part = symbols[:, begin : begin + SUB_CHUNK_TOKENS]
        rows = part.transpose(0, 2, 1).reshape(n_planes * n_channels, part.shape[1])
        stream, lengths = encode_streams(rows, cdf.reshape(-1, N_ENTRIES))
        chunks.append(SubChunk(part.shape[1], lengths.reshape(n_planes, n_channels), stream))
    return cdf, tuple(chunks)


# decoding


def check_payload(payload: CacheGenPayload) -> None:
    """Check that the parts fit each other and that decoding cannot go astray. Decodes nothing.

    Raises:
        ArchiveError: ERR_GEOMETRY, ERR_TABLE, ERR_NON_FINITE or ERR_LIMIT.
    """
    n_channels = payload.n_channels
    if payload.n_heads < 1 or payload.head_size < 1 or n_channels > MAX_CHANNELS:
        raise bad_archive("GEOMETRY", f"{payload.n_heads} heads of {payload.head_size} channels are not possible")
    for name, maxima in (("key", payload.key_maxima), ("value", payload.value_maxima)):
        if maxima.ndim != 2 or maxima.dtype != payload.value_type.dtype or maxima.shape != payload.key_maxima.shape:
            raise bad_archive("GEOMETRY", f"{name} maxima are {maxima.dtype} {list(maxima.shape)}; K and V must agree")
    n_layers, n_tokens = payload.n_layers, payload.n_tokens
    if not 1 <= n_layers <= MAX_LAYERS or n_tokens < 1:
        raise bad_archive("GEOMETRY", f"{n_layers} layers of {n_tokens} tokens are not possible")
    if n_tokens > MAX_TOKENS:
        raise bad_archive("LIMIT", f"{n_tokens} tokens in one call; LMCache's tables are wrong from 65536 on")
    if 2 * n_layers * n_tokens * n_channels > MAX_VALUES:
        raise bad_archive("LIMIT", f"{n_layers} layers of {n_tokens} x {n_channels} values are too much for one call")
    for name, maxima in (("K", payload.key_maxima), ("V", payload.value_maxima)):
        is_bad = ~np.isfinite(widen(maxima)) | np.signbit(widen(maxima))
        if is_bad.any():
            layer, token = np.argwhere(is_bad)[0]
            raise bad_archive(
                "NON_FINITE",
                f"layer {layer} {name}, token {token}: maximum {widen(maxima)[layer, token]} is no magnitude;"
                " the values were not finite, or the archive is damaged",
            )
    if payload.cdf.dtype != np.uint16 or payload.cdf.shape != (2 * n_layers, n_channels, N_ENTRIES):
        raise bad_archive(
            "GEOMETRY",
            f"probability tables are {payload.cdf.dtype} {list(payload.cdf.shape)},"
            f" not {[2 * n_layers, n_channels, N_ENTRIES]}",
        )
    check_cdf(payload.cdf)
    sizes = [chunk.n_tokens for chunk in payload.chunks]
    if sizes != _chunk_sizes(n_tokens):
        raise bad_archive("GEOMETRY", f"{len(sizes)} sub-chunks do not cover {n_tokens} tokens by {SUB_CHUNK_TOKENS}")
    for i, chunk in enumerate(payload.chunks):
        if chunk.lengths.dtype != np.int32 or chunk.lengths.shape != (2 * n_layers, n_channels):
            raise bad_archive(
                "GEOMETRY",
                f"sub-chunk {i}: lengths are {chunk.lengths.dtype} {list(chunk.lengths.shape)},"
                f" not {[2 * n_layers, n_channels]}",
            )
        shortest, longest = int(chunk.lengths.min()), int(chunk.lengths.max())
        if shortest < 1 or longest > MAX_STREAM_BYTES:
            raise bad_archive(
                "GEOMETRY",
                f"sub-chunk {i}: streams of {shortest} to {longest} bytes; 1 to {MAX_STREAM_BYTES} are possible",
            )
        n_bytes = int(chunk.lengths.sum(dtype=np.int64))
        if chunk.stream.dtype != np.uint8 or chunk.stream.shape != (n_bytes,):
            raise bad_archive(
                "GEOMETRY",
                f"sub-chunk {i}: the streams take {n_bytes} bytes by their lengths, {chunk.stream.size} are there",
            )


def decode_symbols(payload: CacheGenPayload) -> NDArray[np.uint8]:
    """The symbols of a payload, proven to be what was encoded: encoding them again gives the same tables and streams.

    LMCache itself checks nothing. It decodes a damaged stream, or one that was cut off because it outgrew its place,
    into wrong values.

    Returns:
        uint8 [2L, T, C].

    Raises:
        ArchiveError: see `check_payload`, and ERR_STREAM: no encoder made these streams with these tables.
    """
    check_payload(payload)
    return _decode_checked(payload)


def _decode_checked(payload: CacheGenPayload) -> NDArray[np.uint8]:
    n_planes, n_channels = 2 * payload.n_layers, payload.n_channels
    symbols = np.empty((n_planes, payload.n_tokens, n_channels), dtype=np.uint8)
    tables = payload.cdf.reshape(-1, N_ENTRIES)
    begin = 0
    for chunk in payload.chunks:
        rows = decode_streams(chunk.stream, chunk.lengths.ravel(), tables, chunk.n_tokens)
        symbols[:, begin : begin + chunk.n_tokens] = rows.reshape(n_planes, n_channels, -1).transpose(0, 2, 1)
        begin += chunk.n_tokens

    cdf, chunks = _encode_symbols(symbols)
    is_bad = (cdf != payload.cdf).any(axis=2)
    for again, chunk in zip(chunks, payload.chunks, strict=True):
        is_bad |= again.lengths != chunk.lengths
    if not is_bad.any():
        for again, chunk in zip(chunks, payload.chunks, strict=True):
            damaged = np.flatnonzero(again.stream != chunk.stream)
            if damaged.size:
                ends = np.cumsum(chunk.lengths.ravel())
                is_bad.flat[np.searchsorted(ends, damaged[0], side="right")] = True
                break
    if is_bad.any():
        plane, channel = np.argwhere(is_bad)[0]
        raise bad_archive(
            "STREAM",
            f"{_plane_name(int(plane), payload.n_layers)}, channel {channel}: streams and probability table do not"
            " belong together; the archive is damaged, fetch or make it again",
        )
    return symbols


def decode(
    payload: CacheGenPayload,
    *,
    key_bins: Sequence[int],
    value_bins: Sequence[int],
    value_type: ValueType | None = None,
) -> NDArray[Any]:
    """The values of a payload, bit-equal to what LMCache decodes from it, or an error.

    Payloads of more than 1,024 tokens, which `encode` refuses, are decoded if their streams survived LMCache's encoder.

    Args:
        payload: from `encode` or `payload_from_container`.
        key_bins: bins of K in every layer, as they were when it was encoded: see `lmcache_schedule`.
        value_bins: bins of V likewise.
        value_type: type of the result, by default that of the encoded values.

    Returns:
        [L, 2, T, H, D]; bfloat16 as uint16.

    Raises:
        ArchiveError: the payload is damaged: see `check_payload` and `decode_symbols`.
        UnsupportedArchiveError: the bins are for another number of layers or not those it was encoded with, or a value
            is too large for value_type (ERR_MISMATCH).
        CodecError: bins out of range (ERR_ARGUMENT).
    """
    check_payload(payload)
    n_layers = payload.n_layers
    plane_bins = _plane_bins(n_layers, key_bins, value_bins, unsupported)
    target = payload.value_type if value_type is None else ValueType(value_type)
    maxima = np.concatenate([payload.key_maxima, payload.value_maxima])
    symbols = _decode_checked(payload)
    _check_levels(symbols, maxima, plane_bins)
    planes = dequantise(symbols, maxima, plane_bins, target)
    if target is not payload.value_type and not np.isfinite(widen(planes)).all():
        raise unsupported("MISMATCH", f"a value is too large for {target.value}; decode as {payload.value_type.value}")
    shape = (n_layers, payload.n_tokens, payload.n_heads, payload.head_size)
    return np.stack([planes[:n_layers].reshape(shape), planes[n_layers:].reshape(shape)], axis=1)


def _check_levels(symbols: NDArray[np.uint8], maxima: NDArray[Any], plane_bins: Sequence[int]) -> None:
    """Every row has its largest magnitude at one of the two ends of its levels, and a row of zeros is all symbol 0."""
    n_layers = len(plane_bins) // 2
    for plane, bins in enumerate(plane_bins):
        top = 2 * centre(bins)
        rows = symbols[plane]
        highest, lowest = rows.max(axis=1), rows.min(axis=1)
        if (highest > top).any() or not ((highest == top) | (lowest == 0)).all():
            raise unsupported(
                "MISMATCH",
                f"{_plane_name(plane, n_layers)}: its symbols are not those of {bins} bins; use the bins of the model"
                " that it was encoded for",
            )
        is_bad = (widen(maxima[plane]) == 0) & (highest > 0)
        if is_bad.any():
            raise bad_archive(
                "TABLE",
                f"{_plane_name(plane, n_layers)}, token {int(is_bad.argmax())}: maximum 0, but not all values are 0;"
                " the archive is damaged, fetch or make it again",
            )


# the container: names

_BASICS = "lmcache.storage_backend.serde.cachegen_basics"
_OUTPUT = Global(_BASICS, "CacheGenGPUEncoderOutput")
_BYTESTREAM = Global(_BASICS, "CacheGenGPUBytestream")
_REBUILD = Global("torch._utils", "_rebuild_tensor_v2")
_LOAD = Global("torch.storage", "_load_from_bytes")
_ORDERED_DICT = Global("collections", "OrderedDict")
_CONTAINER_GLOBALS = (_OUTPUT, _BYTESTREAM, _REBUILD, _LOAD, _ORDERED_DICT)

# torch's legacy storage classes, and how numpy reads their elements
_STORAGES = {
    "ByteStorage": "<u1",
    "ShortStorage": "<i2",
    "IntStorage": "<i4",
    "HalfStorage": "<f2",
    "BFloat16Storage": "<u2",
    "FloatStorage": "<f4",
}
_OTHER_STORAGES = ("BoolStorage", "CharStorage", "LongStorage", "DoubleStorage")
_STORAGE_GLOBALS = tuple(Global("torch", name) for name in (*_STORAGES, *_OTHER_STORAGES))
_VALUE_STORAGES = {
    "HalfStorage": ValueType.FLOAT16,
    "BFloat16Storage": ValueType.BFLOAT16,
    "FloatStorage": ValueType.FLOAT32,
}
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C
_TORCH_PROTOCOL = 1001
_DEVICE = re.compile(r"[a-z]{1,16}(:[0-9]{1,3})?")
_INT64_MAX = 2**63 - 1
_MAX_STORAGE_INSTRUCTIONS = 1000
"""Some 90 are used. A container may name one storage hundreds of times, and it is read each time."""


# the container: reading


class _Tensor(NamedTuple):
    storage: str
    array: NDArray[Any]


class _Tensors:
    """Makes arrays of a container's tensors, together no larger than the container."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def read(self, value: Any, name: str, n_dims: int, storages: Sequence[str]) -> _Tensor:
        """A tensor as an array of its own, if it is of that rank and of one of those types."""
        if type(value) is not Call or value.function != _REBUILD or len(value.arguments) != 6:
            raise bad_archive("MAGIC", f"{name} is not a tensor; this is not an LMCache container")
        source, offset, size, stride, requires_grad, hooks = value.arguments
        if (
            type(source) is not Call
            or source.function != _LOAD
            or len(source.arguments) != 1
            or type(source.arguments[0]) is not bytes
            or requires_grad is not False
            or hooks != Call(_ORDERED_DICT, ())
        ):
            raise bad_archive("MAGIC", f"{name} is not a plain tensor; this is not an LMCache container")
        sizes, strides = _dimensions(size, name), _dimensions(stride, name)
        if len(sizes) != n_dims or len(strides) != n_dims or type(offset) is not int or not 0 <= offset <= _INT64_MAX:
            raise bad_archive("GEOMETRY", f"{name} has {len(sizes)} dimensions, not {n_dims}")
        storage, elements = _read_storage(source.arguments[0], name)
        if storage not in storages:
            raise unsupported("UNSUPPORTED", f"{name} is a {storage}; {' or '.join(storages)} can be read")
        n_values = math.prod(sizes)
        if n_values == 0:
            raise bad_archive("GEOMETRY", f"{name} is empty: {list(sizes)}")
        last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
        is_folded = any(step == 0 for n, step in zip(sizes, strides, strict=True) if n > 1)
        if is_folded or n_values > len(elements) or last >= len(elements):
            raise bad_archive(
                "GEOMETRY", f"{name} reaches beyond its {len(elements)} stored elements, or overlaps itself"
            )
        self.budget -= n_values * elements.itemsize
        if self.budget < 0:
            raise bad_archive("GEOMETRY", f"up to {name} the tensors take more bytes than the container has")
        steps = [step * elements.itemsize if n > 1 else 0 for n, step in zip(sizes, strides, strict=True)]
        view = np.lib.stride_tricks.as_strided(elements[offset:], shape=sizes, strides=steps, writeable=False)
        return _Tensor(storage, np.array(view, dtype=elements.dtype.newbyteorder("="), order="C"))


def _dimensions(value: Any, name: str) -> tuple[int, ...]:
    if type(value) is not tuple or not all(type(n) is int and 0 <= n <= _INT64_MAX for n in value):
        raise bad_archive("GEOMETRY", f"{name}: a size or stride is not a number of elements")
    return value


def _read_storage(data: bytes, name: str) -> tuple[str, NDArray[Any]]:
    """A storage that torch.save wrote in its legacy form: its class and its elements, which are a view of data."""
    reader = Reader(data, f"storage of {name}", _STORAGE_GLOBALS, (2,), _MAX_STORAGE_INSTRUCTIONS)
    for expected in (_TORCH_MAGIC, _TORCH_PROTOCOL):
        number = reader.read()
        if type(number) is not int or number != expected:
            raise reader.error("MAGIC", "not a legacy torch file; this is not an LMCache container")
    system = reader.read()
    if type(system) is not dict or type(system.get("little_endian")) is not bool:
        raise reader.error("MAGIC", "it does not say its byte order; this is not an LMCache container")
    if system["little_endian"] is not True:
        raise unsupported("UNSUPPORTED", f"{name} was written on a big-endian machine, which is not supported")
    reference, keys = reader.read(), reader.read()
    if type(reference) is not PersistentId or type(reference.value) is not tuple or len(reference.value) != 6:
        raise reader.error("MAGIC", "it holds no storage; this is not an LMCache container")
    kind, cls, key, device, n_elements, view = reference.value
    if (
        kind != "storage"
        or type(cls) is not Global
        or type(key) is not str
        or type(keys) is not list
        or len(keys) != 1
        or type(keys[0]) is not str
        or keys[0] != key
        or type(device) is not str
        or _DEVICE.fullmatch(device) is None
        or type(n_elements) is not int
        or view is not None
    ):
        raise reader.error("MAGIC", "it does not hold exactly one whole storage; this is not an LMCache container")
    if cls.name not in _STORAGES:
        raise unsupported("UNSUPPORTED", f"{name} is a {cls.name}, which LMCache's CacheGen does not use")
    (n_stored,) = struct.unpack("<Q", reader.take(8))
    if n_stored != n_elements or n_stored == 0:
        raise reader.error("GEOMETRY", f"{n_elements} elements are announced, {n_stored} stored")
    dtype = np.dtype(_STORAGES[cls.name])
    begin = reader.skip(n_stored * dtype.itemsize)
    if reader.offset != len(data):
        raise reader.error("TRAILING", f"{len(data) - reader.offset} bytes after the end")
    return cls.name, np.frombuffer(data, dtype=dtype, count=n_stored, offset=begin)


def _fields(value: Any, cls: Global, names: Sequence[str]) -> list[Any]:
    if type(value) is not Instance or value.cls != cls or value.state is None or set(value.state) != set(names):
        raise bad_archive("MAGIC", f"there is no {cls.name} with its fields; this is not an LMCache container")
    return [value.state[name] for name in names]


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 1 <= value <= MAX_CHANNELS:
        raise bad_archive("GEOMETRY", f"{name} is not a number from 1 to {MAX_CHANNELS}")
    return value


def payload_from_container(data: bytes | bytearray | memoryview) -> CacheGenPayload:
    """Read LMCache's container: a pickle, of which nothing is executed, and no torch is needed.

    The payload is checked as by `check_payload`; its arrays are its own. Tensors may come from any device.

    Args:
        data: exactly one container.

    Raises:
        ArchiveError: not such a container (ERR_MAGIC), damaged or hostile; see `check_payload` too.
        UnsupportedArchiveError: a sound one of a kind that is not read: another pickle protocol (ERR_VERSION), other
            types or byte order (ERR_UNSUPPORTED).
    """
    raw = bytes(data)
    reader = Reader(raw, "container", _CONTAINER_GLOBALS, protocols=(4, 5))
    root = reader.read()
    if reader.offset != len(raw):
        raise reader.error("TRAILING", f"{len(raw) - reader.offset} bytes after the end")
    data_chunks, cdf, key_maxima, value_maxima, n_heads, head_size = _fields(
        root, _OUTPUT, ("data_chunks", "cdf", "max_tensors_key", "max_tensors_value", "num_heads", "head_size")
    )
    tensors = _Tensors(len(raw))
    if type(data_chunks) is not list or not 1 <= len(data_chunks) <= len(_chunk_sizes(MAX_TOKENS)):
        raise bad_archive("GEOMETRY", "data_chunks is not a list of sub-chunks, or is empty or too long")
    chunks = []
    for i, chunk in enumerate(data_chunks):
        stream, lengths, n_tokens = _fields(chunk, _BYTESTREAM, ("bytestream", "bytestream_lengths", "ntokens"))
        chunks.append(
            SubChunk(
                n_tokens=_count(n_tokens, f"ntokens of sub-chunk {i}"),
                lengths=tensors.read(lengths, f"bytestream_lengths of sub-chunk {i}", 2, ("IntStorage",)).array,
                stream=tensors.read(stream, f"bytestream of sub-chunk {i}", 1, ("ByteStorage",)).array,
            )
        )
    tables = tensors.read(cdf, "cdf", 3, ("ShortStorage",)).array
    key = tensors.read(key_maxima, "max_tensors_key", 3, tuple(_VALUE_STORAGES))
    value = tensors.read(value_maxima, "max_tensors_value", 3, tuple(_VALUE_STORAGES))
    if key.storage != value.storage or key.array.shape[2] != 1 or value.array.shape[2] != 1:
        raise bad_archive(
            "GEOMETRY", "max_tensors_key and max_tensors_value are not of one type with one number a token"
        )
    payload = CacheGenPayload(
        n_heads=_count(n_heads, "num_heads"),
        head_size=_count(head_size, "head_size"),
        value_type=_VALUE_STORAGES[key.storage],
        cdf=tables.view(np.uint16),
        key_maxima=key.array[..., 0],
        value_maxima=value.array[..., 0],
        chunks=tuple(chunks),
    )
    check_payload(payload)
    return payload


# the container: writing


def _pickled_text(text: str) -> bytes:
    raw = text.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def _pickled_int(value: int) -> bytes:
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little")
    return b"\x8a" + bytes([len(raw)]) + raw


def _pickled_bytes(raw: bytes) -> bytes:
    return b"\x8e" + struct.pack("<Q", len(raw)) + raw


def _pickled_tuple(items: Sequence[bytes]) -> bytes:
    return b"(" + b"".join(items) + b"t"


def _pickled_dict(items: dict[str, bytes]) -> bytes:
    return b"}(" + b"".join(_pickled_text(name) + value for name, value in items.items()) + b"u"


def _pickled_global(name: Global) -> bytes:
    return _pickled_text(name.module) + _pickled_text(name.name) + b"\x93"


def _pickled_instance(cls: Global, state: dict[str, bytes]) -> bytes:
    return _pickled_global(cls) + b")\x81" + _pickled_dict(state) + b"b"


def _pickled_call(function: Global, arguments: Sequence[bytes]) -> bytes:
    return _pickled_global(function) + _pickled_tuple(arguments) + b"R"


def _storage_file(storage: str, elements: NDArray[Any]) -> bytes:
    """What torch.save would write of a storage in main memory, in its legacy form."""
    key = _pickled_text("0")
    type_sizes = _pickled_dict({name: _pickled_int(n) for name, n in (("short", 2), ("int", 4), ("long", 4))})
    system = {"protocol_version": _pickled_int(_TORCH_PROTOCOL), "little_endian": b"\x88", "type_sizes": type_sizes}
    cls = f"ctorch\n{storage}\n".encode()
    reference = [_pickled_text("storage"), cls, key, _pickled_text("cpu"), _pickled_int(elements.size), b"N"]
    pickles = (
        _pickled_int(_TORCH_MAGIC),
        _pickled_int(_TORCH_PROTOCOL),
        _pickled_dict(system),
        _pickled_tuple(reference) + b"Q",
        b"](" + key + b"e",
    )
    head = b"".join(b"\x80\x02" + body + b"." for body in pickles)
    return head + struct.pack("<Q", elements.size) + elements.astype(_STORAGES[storage], copy=False).tobytes()


def _pickled_tensor(storage: str, array: NDArray[Any]) -> bytes:
    strides = [math.prod(array.shape[i + 1 :]) for i in range(array.ndim)]
    return _pickled_call(
        _REBUILD,
        [
            _pickled_call(_LOAD, [_pickled_bytes(_storage_file(storage, array))]),
            _pickled_int(0),
            _pickled_tuple([_pickled_int(n) for n in array.shape]),
            _pickled_tuple([_pickled_int(n) for n in strides]),
            b"\x89",
            _pickled_call(_ORDERED_DICT, []),
        ],
    )


def payload_to_container(payload: CacheGenPayload) -> bytes:
    """Write a payload as a container that LMCache 0.5.6 loads: tensors in main memory, equal bytes for equal payloads.

    LMCache's own containers of a payload differ from these, and from each other: they hold memory addresses.

    Raises:
        ArchiveError: the payload is not sound: see `check_payload`.
    """
    check_payload(payload)
    storage = next(name for name, value_type in _VALUE_STORAGES.items() if value_type is payload.value_type)
    chunks = [
        _pickled_instance(
            _BYTESTREAM,
            {
                "bytestream": _pickled_tensor("ByteStorage", chunk.stream),
                "bytestream_lengths": _pickled_tensor("IntStorage", chunk.lengths),
                "ntokens": _pickled_int(chunk.n_tokens),
            },
        )
        for chunk in payload.chunks
    ]
    output = _pickled_instance(
        _OUTPUT,
        {
            "data_chunks": b"](" + b"".join(chunks) + b"e",
            "cdf": _pickled_tensor("ShortStorage", payload.cdf.view(np.int16)),
            "max_tensors_key": _pickled_tensor(storage, payload.key_maxima[..., np.newaxis]),
            "max_tensors_value": _pickled_tensor(storage, payload.value_maxima[..., np.newaxis]),
            "num_heads": _pickled_int(payload.n_heads),
            "head_size": _pickled_int(payload.head_size),
        },
    )
    return b"\x80\x04" + output + b"."
