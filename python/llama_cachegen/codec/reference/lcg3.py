"""A second decoder of LCG3, in numpy, slow and plain. It shares no code with libcachegen.

Its source is docs/formats/lcg3.md. The entropy coder is rANS (J. Duda, arXiv 1311.2540) in F. Giesen's interleaved form
(arXiv 1402.3392), its symbol look-up the alias method in the variant that the format page fixes.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ArchiveError

__all__ = ["DecodedPlane", "alias_slots", "decode_lcg3"]

_LOW = 1 << 16
_STATUS = {
    "TRUNCATED": 20,
    "MAGIC": 22,
    "VERSION": 23,
    "RESERVED": 24,
    "GEOMETRY": 25,
    "TABLE": 27,
    "STREAM": 28,
    "DIGEST": 29,
}
# type: (bits of a coded value, values of a block, bytes of a block)
_TYPES = {0: (32, 1, 4), 1: (16, 1, 2), 2: (4, 32, 18), 8: (8, 32, 34), 30: (16, 1, 2)}


class DecodedPlane(NamedTuple):
    """One plane.

    Attributes:
        layer: model layer.
        kind: 1 K, 2 V, 3 auxiliary.
        mode: 0 raw, 1 lossy, 2 exact.
        type: ggml type of the source.
        n_rot: rotation of the source.
        unrotated: `values` are those before the rotation.
        values: lossy: float32 [n_coded_tokens, n_channels].
        native: raw and exact: uint8 [n_coded_tokens, row bytes].
        exact_rows: uint8 [n_exact_tokens, row bytes]: the first tokens.
        first_token: the page's token that its first row is.
    """

    layer: int
    kind: int
    mode: int
    type: int
    n_rot: int
    unrotated: bool
    values: NDArray[np.float32] | None
    native: NDArray[np.uint8] | None
    exact_rows: NDArray[np.uint8]
    first_token: int


class _Set(NamedTuple):
    values: NDArray[np.uint32]
    class_of: NDArray[np.int64]
    initial_class: int
    n_models: int
    slots: NDArray[np.int64]  # [n_models, n_classes, 1024, 3]: symbol, frequency, rank


def _fail(status: str, message: str) -> ArchiveError:
    return ArchiveError(_STATUS[status], f"ERR_{status}", message)


def alias_slots(frequencies: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which symbol each of the 1,024 slots belongs to, its frequency, and the slot's rank among the symbol's slots.

    Args:
        frequencies: int64 [n_symbols], they sum to 1,024.

    Returns:
        int64 [1024, 3].
    """
    n_buckets = 16 if len(frequencies) <= 16 else 32 if len(frequencies) <= 32 else 64
    width = 1024 // n_buckets
    left = [int(f) for f in frequencies] + [0] * (n_buckets - len(frequencies))
    donors = [s for s in range(n_buckets) if left[s] > width]
    own = [width] * n_buckets
    donor_of: list[int | None] = [None] * n_buckets
    served = [False] * n_buckets
    for bucket in range(n_buckets):
        current = bucket
        while not served[current] and left[current] < width:
            own[current], donor_of[current], served[current] = left[current], donors[0], True
            left[donors[0]] -= width - left[current]
            if left[donors[0]] > width:
                break
            current = donors.pop(0)
    slots = np.zeros((1024, 3), dtype=np.int64)
    rank = list(own)
    for bucket in range(n_buckets):
        begin = bucket * width
        n_own = own[bucket]
        slots[begin : begin + n_own, 0] = bucket
        slots[begin : begin + n_own, 2] = np.arange(n_own)
        donor = donor_of[bucket]
        if donor is not None:
            slots[begin + n_own : begin + width, 0] = donor
            slots[begin + n_own : begin + width, 2] = rank[donor] + np.arange(width - n_own)
            rank[donor] += width - n_own
    slots[:, 1] = np.append(frequencies, np.zeros(64, dtype=np.int64))[slots[:, 0]]
    return slots


class _Input:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def take(self, n: int) -> bytes:
        if n > len(self.data) - self.offset:
            raise _fail("TRUNCATED", f"{n} bytes are needed at offset {self.offset} of {len(self.data)}")
        self.offset += n
        return self.data[self.offset - n : self.offset]

    def unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))

    def align(self, alignment: int, of: int = 0) -> None:
        if any(self.take(-(self.offset - of) % alignment)):
            raise _fail("RESERVED", f"padding before offset {self.offset} is not zero")


def _unpack_bits(data: bytes, n: int, width: int) -> NDArray[np.int64]:
    all_bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if all_bits[n * width :].any():
        raise _fail("RESERVED", "spare bits after packed numbers are not zero")
    bits = all_bits[: n * width].reshape(n, width)
    return np.asarray(bits.astype(np.int64) @ (1 << np.arange(width, dtype=np.int64)), dtype=np.int64)


def _packed_bytes(n: int, width: int) -> int:
    return (n * width + 31) // 32 * 4


def _read_set(source: _Input) -> _Set:
    n_symbols, n_classes, initial_class, reserved0, n_models, reserved1 = source.unpack("BBBBHH")
    if reserved0 or reserved1:
        raise _fail("RESERVED", "a symbol set's reserved bytes are not zero")
    if not (2 <= n_symbols <= 64 and 1 <= n_classes <= 16 and initial_class < n_classes and 1 <= n_models <= 256):
        raise _fail("TABLE", f"{n_symbols} symbols, {n_classes} classes, {n_models} models")
    values = np.array(source.unpack(f"{n_symbols}I"), dtype=np.uint32)
    class_of = np.frombuffer(source.take(n_symbols), np.uint8).astype(np.int64)
    steps = np.diff(class_of)
    if class_of[0] != 0 or class_of.max() >= n_classes or (steps < 0).any() or (steps > 1).any():
        raise _fail("TABLE", "classes do not go up from 0 one by one")
    slots = np.zeros((n_models, n_classes, 1024, 3), dtype=np.int64)
    for model in range(n_models):
        for context in range(n_classes):
            frequencies = []
            for _ in range(n_symbols):
                frequency = source.take(1)[0]
                if frequency == 255:
                    (frequency,) = source.unpack("H")
                    if not 255 <= frequency <= 1024:
                        raise _fail("TABLE", f"frequency {frequency} in three bytes")
                frequencies.append(frequency)
            if sum(frequencies) != 1024:
                raise _fail("TABLE", f"frequencies sum to {sum(frequencies)}")
            slots[model, context] = alias_slots(np.array(frequencies, dtype=np.int64))
    source.align(8)
    return _Set(values, class_of, initial_class, n_models, slots)


def _decode_symbols(
    one: _Set, models: NDArray[np.int64], states: NDArray[np.int64], words: list[NDArray[np.int64]], n_tokens: int
) -> NDArray[np.int64]:
    """Symbols [n_tokens, n_channels]: every channel takes one step a token, each group of 32 shares a word stream."""
    n_channels = len(models)
    state = states.copy()
    context = np.full(n_channels, one.initial_class, dtype=np.int64)
    position = [0] * len(words)
    symbols = np.zeros((n_tokens, n_channels), dtype=np.int64)
    for t in range(n_tokens):
        entry = one.slots[models, context, state & 1023]
        symbols[t] = entry[:, 0]
        state = entry[:, 1] * (state >> 10) + entry[:, 2]
        context = one.class_of[np.minimum(entry[:, 0], len(one.class_of) - 1)]
        for group, stream in enumerate(words):
            lanes = np.flatnonzero(state[32 * group : 32 * group + 32] < _LOW) + 32 * group
            if len(lanes) > len(stream) - position[group]:
                raise _fail("STREAM", "the words end too early")
            state[lanes] = state[lanes] << 16 | stream[position[group] : position[group] + len(lanes)]
            position[group] += len(lanes)
    if (state != _LOW).any() or any(p != len(stream) for p, stream in zip(position, words, strict=True)):
        raise _fail("STREAM", "a final state is not 65,536, or words are left over")
    return symbols


def _join(type_: int, codes: NDArray[np.int64], scales: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Native rows of coded values: uint8 [n_tokens, row bytes]."""
    n_tokens, n_channels = codes.shape
    if type_ == 0:
        return codes.astype("<u4").view(np.uint8)
    if type_ in (1, 30):
        return codes.astype("<u2").view(np.uint8)
    blocks = codes.reshape(n_tokens, n_channels // 32, 32)
    if type_ == 2:
        blocks = blocks[:, :, :16] | blocks[:, :, 16:] << 4
    d = scales.reshape(n_tokens, n_channels // 32, 1).astype("<u2").view(np.uint8)
    return np.concatenate([d, blocks.astype(np.uint8)], axis=2).reshape(n_tokens, -1)


def _scale_values(bits: NDArray[np.int64], scale_type: int) -> NDArray[np.float32]:
    if scale_type == 1:
        return bits.astype(np.uint16).view(np.float16).astype(np.float32)
    return (bits << (16 if scale_type == 30 else 0)).astype(np.uint32).view(np.float32)


def decode_lcg3(data: bytes) -> list[DecodedPlane]:
    """Decode a whole archive.

    Raises:
        ArchiveError: the archive breaks a rule of the format. Not every rule is checked here; libcachegen does.
    """
    source = _Input(bytes(data))
    if source.take(4) != b"LCG3":
        raise _fail("MAGIC", "not an LCG3 archive")
    version, header_bytes, archive_bytes, metadata_bytes = source.unpack("HHQQ")
    n_tokens, n_exact, block_tokens, n_planes, n_sets, reserved = source.unpack("6I")
    source.take(16)  # the profile's name
    if version != 1 or header_bytes != 64:
        raise _fail("VERSION", f"version {version}")
    if reserved:
        raise _fail("RESERVED", "the header's reserved number is not zero")
    if archive_bytes != len(data) or n_exact > n_tokens or not 72 <= metadata_bytes <= len(data):
        raise _fail("GEOMETRY", f"{archive_bytes} bytes, {n_exact} exact tokens of {n_tokens}")
    digest = struct.unpack_from("<Q", data, metadata_bytes - 8)[0]
    if xxhash.xxh3_64_intdigest(data[: metadata_bytes - 8]) != digest:
        raise _fail("DIGEST", "the metadata does not match its digest")

    records = [source.unpack("iBBBBIHBBB3sI") for _ in range(n_planes)]
    sets = [_read_set(source) for _ in range(n_sets)]
    for record in records:
        if record[3] not in _TYPES or record[2] > 2 or (record[2] and record[8] >= n_sets):
            raise _fail("GEOMETRY", f"mode {record[2]}, type {record[3]}, set {record[8]} of {n_sets}")
        if record[11] >= n_tokens:
            raise _fail("GEOMETRY", f"a plane begins at token {record[11]} of {n_tokens}")
    models = [
        np.frombuffer(source.take(record[5]), np.uint8).astype(np.int64)
        if record[2] != 0
        else np.zeros(0, dtype=np.int64)
        for record in records
    ]
    for record, numbers in zip(records, models, strict=True):
        if len(numbers) and numbers.max() >= sets[record[8]].n_models:
            raise _fail("TABLE", f"model {numbers.max()} of {sets[record[8]].n_models}")
    source.align(8)
    n_blocks = -(-(n_tokens - n_exact) // block_tokens)
    sizes = source.unpack(f"{n_blocks * n_planes}I")
    source.align(8)
    digests = source.unpack(f"{n_blocks + 1}Q")
    source.take(8)
    if source.offset != metadata_bytes:
        raise _fail("GEOMETRY", f"the metadata ends at {source.offset}, not at {metadata_bytes}")

    source.align(64)
    begin = source.offset
    exact_rows = []
    for record in records:
        _, block_values, block_bytes = _TYPES[record[3]]
        row_bytes = record[5] // block_values * block_bytes
        n_rows = max(0, n_exact - record[11])
        exact_rows.append(np.frombuffer(source.take(n_rows * row_bytes), np.uint8).reshape(n_rows, row_bytes))
    if xxhash.xxh3_64_intdigest(data[begin : source.offset]) != digests[0]:
        raise _fail("DIGEST", "the exact rows do not match their digest")
    source.align(64)

    parts: list[list[NDArray[Any]]] = [[] for _ in records]
    for block in range(n_blocks):
        first_token = n_exact + block * block_tokens
        end_token = min(first_token + block_tokens, n_tokens)
        begin = source.offset
        for index, record in enumerate(records):
            unit = source.take(sizes[block * n_planes + index])
            rows = end_token - max(first_token, record[11])
            if rows > 0:
                parts[index].append(_decode_unit(unit, record, sets, models[index], rows))
            elif unit:
                raise _fail("GEOMETRY", "a unit without tokens has bytes")
        if xxhash.xxh3_64_intdigest(data[begin : source.offset]) != digests[block + 1]:
            raise _fail("DIGEST", f"block {block} does not match its digest")
    if source.offset != len(data):
        raise _fail("GEOMETRY", f"the units end at {source.offset}, the archive at {len(data)}")

    planes = []
    for record, rows_before, decoded in zip(records, exact_rows, parts, strict=True):
        layer, kind, mode, type_, _, n_channels, n_rot, flags = record[:8]
        empty = np.zeros((0, n_channels), np.float32) if mode == 1 else np.zeros((0, rows_before.shape[1]), np.uint8)
        joined = np.concatenate([empty, *decoded])
        planes.append(
            DecodedPlane(
                layer, kind, mode, type_, n_rot, bool(flags & 1),
                joined if mode == 1 else None, None if mode == 1 else joined, rows_before, record[11],
            )
        )  # fmt: skip
    return planes


def _decode_unit(
    unit: bytes, record: tuple[Any, ...], sets: list[_Set], models: NDArray[np.int64], n_rows: int
) -> NDArray[Any]:
    _, _, mode, type_, scale_type, n_channels, _, _, set_index, raw_bits, _, _ = record
    _, block_values, block_bytes = _TYPES[type_]
    source = _Input(unit)
    if mode == 0:
        row_bytes = n_channels // block_values * block_bytes
        native = np.frombuffer(source.take(n_rows * row_bytes), np.uint8).reshape(n_rows, row_bytes)
        source.align(16)
        return native
    one = sets[set_index]
    scale_base, scale_bits = source.unpack("IB3x")
    n_groups = -(-n_channels // 32)
    n_words = source.unpack(f"{n_groups}I")
    states = np.array(source.unpack(f"{n_channels}I"), dtype=np.int64)
    n_scales = n_rows * (1 if mode == 1 else n_channels // 32 if block_values == 32 else 0)
    scales = scale_base + _unpack_bits(source.take(_packed_bytes(n_scales, scale_bits)), n_scales, scale_bits)
    n_raw = n_rows * n_channels
    raw = _unpack_bits(source.take(_packed_bytes(n_raw, raw_bits)), n_raw, raw_bits).reshape(n_rows, n_channels)
    words = [np.array(source.unpack(f"{n}H"), dtype=np.int64) for n in n_words]
    source.align(16)
    if (states < _LOW).any():
        raise _fail("STREAM", "a state is below 65,536")
    symbols = _decode_symbols(one, models, states, words, n_rows)
    if mode == 1:
        levels = one.values.view(np.float32)
        return np.asarray(levels[symbols] * _scale_values(scales, scale_type)[:, None], dtype=np.float32)
    return _join(type_, one.values[symbols].astype(np.int64) << raw_bits | raw, scales)
