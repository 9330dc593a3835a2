"""The segment file: header, manifest, tokens, payload; every number checked before it is used.

The format is described in docs/formats/store-segment.md.
"""

from __future__ import annotations

import binascii
import functools
import hmac
import struct
from collections.abc import Callable
from typing import Literal, NamedTuple

import blake3
import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import SegmentCorruptError, SegmentKeyError, SegmentVersionError
from ..file_kinds import kind_of_bytes
from .chain import HASH_BYTES, Chain, context_hash, root_hash
from .identity import KNOWN_CODECS, CodecStamp, StoreIdentity

__all__ = [
    "FORMAT",
    "FORMAT_VERSION",
    "HEADER",
    "MAGIC",
    "Manifest",
    "MeasuredError",
    "SegmentPrefix",
    "encode_prefix",
    "payload_digest",
    "plan_segment",
    "read_payload_digest",
    "read_prefix",
    "read_tokens",
]

MAGIC = b"\x89LKS\r\n\x1a\n"
FORMAT = "segment/1"
FORMAT_VERSION = 1
HEADER = struct.Struct("<8sHHIQQQQQII32s32s")
MAX_MANIFEST_BYTES = 1 << 24
MAX_TOKENS = 2**31 - 1
MAX_BLOCK_TOKENS = 1 << 16
MAX_DECODED_BYTES = 1 << 48
HEAD_BYTES = 8192
"""Read at first; what a manifest needs beyond is read when its size is known to be possible."""
_FLAG_KEYED = 1
_RESERVED = bytes(HASH_BYTES)
_ALIGNMENT = 4096
_MAX_PARALLEL_BYTES = 1 << 20
_PIECE_BYTES = 1 << 24

PayloadFormat = Literal["page", "archive-page", "lcg3"]


class MeasuredError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a lossy entry is from what was saved, as measured by whoever made it.

    Attributes:
        metric: its name, for example "kl_mean" or "rms".
        value: of the metric, finite.
    """

    metric: str
    value: float

    def __post_init__(self) -> None:
        if not abs(self.value) < float("inf"):
            raise ValueError(f"measured error {self.metric}: {self.value} is not finite")


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a segment is.

    Attributes:
        format: "segment/1".
        identity: what its bytes depend on besides tokens and codec.
        codec: how its values are coded, and whether that is exact.
        block_tokens: tokens of a block of the chain.
        pos_begin: tokens before the segment, a multiple of block_tokens.
        n_tokens: tokens in it.
        parent: hash of everything before it, hexadecimal.
        chain: hash of each block in it, hexadecimal; the last block may be a partial one.
        divisible: any first blocks of it can be restored alone; False: only all of it (it holds a recurrent state).
        payload_format: "page", "archive-page" or "lcg3".
        payload_bytes, payload_blake3: size and digest of the payload; keyed if the header says so.
        decoded_bytes: native bytes it decodes to.
        component_types: ggml types by kind, for example {"K": "q8_0", "V": "f16"}.
        measured_error: of a lossy entry.
        created_ms: when it was saved, milliseconds since 1970. When it was last used is the file's modification time.
    """

    format: str = FORMAT
    identity: StoreIdentity
    codec: CodecStamp
    block_tokens: int
    pos_begin: int
    n_tokens: int
    parent: str
    chain: tuple[str, ...]
    divisible: bool
    payload_format: PayloadFormat
    payload_bytes: int
    payload_blake3: str
    decoded_bytes: int
    component_types: dict[str, str]
    measured_error: tuple[MeasuredError, ...] = ()
    created_ms: int

    @property
    def key(self) -> bytes:
        """The segment's name: the hash of everything up to its end."""
        return bytes.fromhex(self.chain[-1])


class _RawManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same with the two parts that many segments have in common left as they are."""

    format: str
    identity: msgspec.Raw
    codec: msgspec.Raw
    block_tokens: int
    pos_begin: int
    n_tokens: int
    parent: str
    chain: tuple[str, ...]
    divisible: bool
    payload_format: PayloadFormat
    payload_bytes: int
    payload_blake3: str
    decoded_bytes: int
    component_types: dict[str, str]
    measured_error: tuple[MeasuredError, ...]
    created_ms: int


_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(_RawManifest, strict=True)
_identity_decoder = msgspec.json.Decoder(StoreIdentity, strict=True)
_codec_decoder = msgspec.json.Decoder(CodecStamp, strict=True)


class _Origin(NamedTuple):
    """What the parts that many segments have in common amount to."""

    identity: StoreIdentity
    codec: CodecStamp
    context: bytes
    root: bytes


@functools.lru_cache(maxsize=256)
def _origin(identity_json: bytes, codec_json: bytes, block_tokens: int, key: bytes | None) -> _Origin:
    identity = _identity_decoder.decode(identity_json)
    codec = _codec_decoder.decode(codec_json)
    context = context_hash(identity, key)
    return _Origin(identity, codec, context, root_hash(context, codec, block_tokens, key))


class SegmentPlan(NamedTuple):
    """Where the sections of a segment are. There is one plan for given sizes."""

    tokens_offset: int
    payload_offset: int
    file_bytes: int


def plan_segment(manifest_bytes: int, n_tokens: int, payload_bytes: int) -> SegmentPlan:
    """The offsets and the size of a segment with sections of these sizes."""
    tokens_offset = -(-(HEADER.size + manifest_bytes) // 8) * 8
    payload_offset = -(-(tokens_offset + 4 * n_tokens) // _ALIGNMENT) * _ALIGNMENT
    return SegmentPlan(tokens_offset, payload_offset, payload_offset + payload_bytes)


def payload_digest(payload: memoryview | bytes, key: bytes | None) -> str:
    """BLAKE3 of a payload, hexadecimal; keyed with a key. Large ones take all cores."""
    threads = blake3.blake3.AUTO if len(payload) > _MAX_PARALLEL_BYTES else 1
    hasher = blake3.blake3(max_threads=threads) if key is None else blake3.blake3(key=key, max_threads=threads)
    return str(hasher.update(payload).hexdigest())


def read_payload_digest(
    prefix: SegmentPrefix, read: Callable[[int, int], bytes], key: bytes | None, *, beside_others: bool = False
) -> str:
    """The same of a segment's payload, read piece by piece; of fewer bytes if the file has fewer.

    beside_others: on the calling thread only, in pieces that fit into its cache, as others use the cores.

    Raises:
        OSError: from read.
    """
    offset, end = prefix.plan.payload_offset, prefix.plan.file_bytes
    is_parallel = prefix.payload_bytes > _MAX_PARALLEL_BYTES and not beside_others
    threads = blake3.blake3.AUTO if is_parallel else 1
    hasher = blake3.blake3(max_threads=threads) if key is None else blake3.blake3(key=key, max_threads=threads)
    step = _PIECE_BYTES if is_parallel else _MAX_PARALLEL_BYTES
    while offset < end:
        piece = read(min(step, end - offset), offset)
        if not piece:
            break
        hasher.update(piece)
        offset += len(piece)
    return str(hasher.hexdigest())


def _prefix_digest(prefix: bytes, key: bytes | None) -> bytes:
    """Of header, manifest and padding, the digest's own place being zero."""
    data = prefix[: HEADER.size - HASH_BYTES] + _RESERVED + prefix[HEADER.size :]
    return (blake3.blake3(data) if key is None else blake3.blake3(data, key=key)).digest()


# writing


def encode_prefix(manifest: Manifest, tokens: bytes, key: bytes | None = None) -> bytes:
    """Everything of a segment before its payload: header, manifest, tokens, padding.

    Args:
        manifest: complete.
        tokens: little-endian i32, n_tokens of them.
        key: 32 bytes of a keyed store.

    Raises:
        ValueError: the manifest breaks a rule of the format.
    """
    text = _encoder.encode(manifest)
    if len(text) > MAX_MANIFEST_BYTES:
        raise ValueError(f"the manifest takes {len(text)} bytes; at most {MAX_MANIFEST_BYTES} are possible")
    raw = _decoder.decode(text)
    _check_manifest(raw, _origin(bytes(raw.identity), bytes(raw.codec), raw.block_tokens, key))
    if len(tokens) != 4 * manifest.n_tokens:
        raise ValueError(f"{len(tokens)} bytes of tokens for {manifest.n_tokens} tokens")
    plan = plan_segment(len(text), manifest.n_tokens, manifest.payload_bytes)
    fields = (
        MAGIC,
        FORMAT_VERSION,
        _FLAG_KEYED if key is not None else 0,
        HEADER.size,
        plan.file_bytes,
        len(text),
        plan.tokens_offset,
        plan.payload_offset,
        manifest.payload_bytes,
        manifest.n_tokens,
        0,
        _RESERVED,
    )
    rest = text.ljust(plan.tokens_offset - HEADER.size, b"\0")
    header = HEADER.pack(*fields, _prefix_digest(HEADER.pack(*fields, _RESERVED) + rest, key))
    return (header + rest + tokens).ljust(plan.payload_offset, b"\0")


# reading


class SegmentPrefix(NamedTuple):
    """A checked header and manifest.

    Attributes:
        chain: the hashes of the blocks, one after another.
        context, root: hashes of the identity, and of identity and codec.
    """

    plan: SegmentPlan
    identity: StoreIdentity
    codec: CodecStamp
    context: bytes
    root: bytes
    block_tokens: int
    pos_begin: int
    n_tokens: int
    parent: bytes
    chain: bytes
    divisible: bool
    payload_format: PayloadFormat
    payload_bytes: int
    payload_blake3: str
    decoded_bytes: int
    component_types: dict[str, str]
    measured_error: tuple[MeasuredError, ...]
    created_ms: int

    @property
    def key(self) -> bytes:
        """The segment's name: the hash of everything up to its end."""
        return self.chain[-HASH_BYTES:]

    @property
    def first(self) -> bytes:
        """Hash of its first block."""
        return self.chain[:HASH_BYTES]


def _check_manifest(raw: _RawManifest, origin: _Origin) -> tuple[bytes, bytes]:
    """Every value against the others. Returns parent and chain.

    Raises:
        ValueError: one breaks a rule.
        SegmentVersionError: an unknown codec.
    """
    codec = origin.codec
    if KNOWN_CODECS.get(codec.name, 0) < codec.version:
        raise SegmentVersionError(f"codec {codec.name}/{codec.version} is none that this version reads")
    if codec.name == "native" and not codec.is_exact:
        raise ValueError("native bytes are called lossy")
    if not 1 <= raw.block_tokens <= MAX_BLOCK_TOKENS:
        raise ValueError(f"blocks of {raw.block_tokens} tokens are not possible; 1 to {MAX_BLOCK_TOKENS} are")
    if raw.pos_begin < 0 or raw.n_tokens < 1 or raw.pos_begin + raw.n_tokens > MAX_TOKENS:
        raise ValueError(f"{raw.n_tokens} tokens from position {raw.pos_begin} are not possible")
    if raw.pos_begin % raw.block_tokens:
        raise ValueError(f"position {raw.pos_begin} is not where a block of {raw.block_tokens} tokens begins")
    n_blocks = -(-raw.n_tokens // raw.block_tokens)
    chain = binascii.unhexlify("".join(raw.chain))
    if len(raw.chain) != n_blocks or len(chain) != HASH_BYTES * n_blocks:
        raise ValueError(f"a chain of {len(raw.chain)} hashes for {n_blocks} blocks")
    parent = binascii.unhexlify(raw.parent)
    if len(parent) != HASH_BYTES or (raw.pos_begin == 0 and parent != origin.root):
        raise ValueError("the chain does not begin with the hash of identity and codec")
    if not 1 <= raw.payload_bytes <= MAX_DECODED_BYTES or not 1 <= raw.decoded_bytes <= MAX_DECODED_BYTES:
        raise ValueError(f"a payload of {raw.payload_bytes} bytes for {raw.decoded_bytes} is not possible")
    if len(raw.payload_blake3) != 2 * HASH_BYTES:
        raise ValueError("the payload's digest is no BLAKE3")
    return parent, chain


def read_prefix(
    read: Callable[[int, int], bytes], file_bytes: int, key: bytes | None = None, name: str = "the segment"
) -> SegmentPrefix:
    """Check header and manifest.

    Args:
        read: read(n_bytes, offset) of the file; fewer bytes only at its end.
        file_bytes: size of the file.
        key: 32 bytes of a keyed store.
        name: for messages.

    Raises:
        SegmentCorruptError: no segment, cut short, or bytes are damaged.
        SegmentVersionError: of a format or codec that this version does not read.
        SegmentKeyError: keyed and no key was given, or the reverse.
        OSError: from read.
    """
    head = read(min(HEAD_BYTES, file_bytes), 0)
    if head[: len(MAGIC)] != MAGIC[: len(head)] or not head:
        raise SegmentCorruptError(f"{name} is not a segment: it begins with other bytes")
    if len(head) < HEADER.size:
        raise SegmentCorruptError(f"{name} has {file_bytes} bytes; the header alone takes {HEADER.size}")
    (
        _,
        version,
        flags,
        header_bytes,
        stated_bytes,
        manifest_bytes,
        tokens_offset,
        payload_offset,
        payload_bytes,
        n_tokens,
        zero,
        reserved,
        digest,
    ) = HEADER.unpack_from(head)
    if version != FORMAT_VERSION:
        raise SegmentVersionError(f"{name} has segment format version {version}; this version reads {FORMAT_VERSION}")
    if stated_bytes != file_bytes:
        raise SegmentCorruptError(f"{name} has {file_bytes} bytes, its header says {stated_bytes}")
    if header_bytes != HEADER.size or zero or reserved != _RESERVED or flags & ~_FLAG_KEYED:
        raise SegmentCorruptError(f"{name}: the header's size, flags or reserved bytes are not those of this version")
    if not 2 <= manifest_bytes <= MAX_MANIFEST_BYTES or not 1 <= n_tokens <= MAX_TOKENS or payload_bytes < 1:
        raise SegmentCorruptError(f"{name}: the header's numbers are not possible")
    plan = plan_segment(manifest_bytes, n_tokens, payload_bytes)
    if plan != SegmentPlan(tokens_offset, payload_offset, file_bytes):
        raise SegmentCorruptError(f"{name}: the sections are not where their sizes put them")
    if bool(flags & _FLAG_KEYED) != (key is not None):
        raise SegmentKeyError(f"{name} {'is keyed and no key was given' if key is None else 'is not keyed'}")
    if len(head) < tokens_offset:
        head += read(tokens_offset - len(head), len(head))
        if len(head) < tokens_offset:
            raise SegmentCorruptError(f"{name} became shorter while it was read")
    if not hmac.compare_digest(_prefix_digest(head[:tokens_offset], key), digest):
        raise SegmentCorruptError(f"{name}: header or manifest do not match their digest; bytes are damaged")
    end = HEADER.size + manifest_bytes
    if any(head[end:tokens_offset]):
        raise SegmentCorruptError(f"{name}: padding is not zero")
    try:
        raw = _decoder.decode(head[HEADER.size : end])
        if raw.format != FORMAT:
            raise SegmentVersionError(f"{name}: the manifest has format {raw.format!r}; {FORMAT!r} is expected here")
        origin = _origin(bytes(raw.identity), bytes(raw.codec), raw.block_tokens, key)
        parent, chain = _check_manifest(raw, origin)
    except SegmentVersionError as error:
        raise SegmentVersionError(f"{name}: {error}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise SegmentCorruptError(f"{name}: the manifest cannot be used: {error}") from None
    if raw.n_tokens != n_tokens or raw.payload_bytes != payload_bytes:
        raise SegmentCorruptError(f"{name}: header and manifest have other sizes")
    return SegmentPrefix(
        plan,
        origin.identity,
        origin.codec,
        origin.context,
        origin.root,
        raw.block_tokens,
        raw.pos_begin,
        n_tokens,
        parent,
        chain,
        raw.divisible,
        raw.payload_format,
        payload_bytes,
        raw.payload_blake3,
        raw.decoded_bytes,
        raw.component_types,
        raw.measured_error,
        raw.created_ms,
    )


def read_tokens(
    prefix: SegmentPrefix, read: Callable[[int, int], bytes], key: bytes | None = None, name: str = "the segment"
) -> NDArray[np.int32]:
    """The tokens, checked against the chain, and the padding after them.

    Returns:
        int32 [n_tokens], read-only.

    Raises:
        SegmentCorruptError: they do not give the chain, or padding is not zero.
        OSError: from read.
    """
    data = read(prefix.plan.payload_offset - prefix.plan.tokens_offset, prefix.plan.tokens_offset)
    tokens, padding = data[: 4 * prefix.n_tokens], data[4 * prefix.n_tokens :]
    if len(data) != prefix.plan.payload_offset - prefix.plan.tokens_offset or any(padding):
        raise SegmentCorruptError(f"{name}: the tokens are cut short, or the padding after them is not zero")
    if b"".join(Chain(prefix.parent, tokens, prefix.block_tokens, key).hashes()) != prefix.chain:
        raise SegmentCorruptError(f"{name}: the tokens are not those of the chain; bytes are damaged")
    array: NDArray[np.int32] = np.frombuffer(tokens, dtype="<i4").astype(np.int32)
    array.setflags(write=False)
    return array


def check_payload_kind(payload_format: PayloadFormat, head: bytes) -> None:
    """Raises ValueError unless a payload begins like one of that format."""
    kind = kind_of_bytes(head)
    if kind is None or kind.value != payload_format:
        raise ValueError(f"the payload does not begin like a {payload_format}: {head.hex(' ')}")
