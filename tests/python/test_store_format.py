"""The segment file: what is written is read, and every rule of it has a file that breaks it and is refused."""

from __future__ import annotations

import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blake3
import msgspec
import pytest
from format_examples import blocks_of
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cachegen.errors import SegmentCorruptError, SegmentError, SegmentKeyError, SegmentVersionError
from llama_cachegen.store import Adapter, CodecStamp, MeasuredError, Store, StoreIdentity
from llama_cachegen.store.chain import Chain, context_hash, root_hash
from llama_cachegen.store.segment import (
    HEADER,
    MAGIC,
    Manifest,
    SegmentPrefix,
    encode_prefix,
    payload_digest,
    read_payload_digest,
    read_prefix,
    read_tokens,
)
from store_cases import EXACT, IDENTITY, LOSSY, payload_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "formats" / "store-segment.md").read_text(encoding="utf-8")
COMPAT = ROOT / "tests" / "compat"


def make(
    n_tokens: int = 10,
    *,
    block_tokens: int = 4,
    begin_block: int = 0,
    identity: StoreIdentity = IDENTITY,
    codec: CodecStamp = EXACT,
    key: bytes | None = None,
    **changes: Any,
) -> bytes:
    """A segment's bytes."""
    tokens = struct.pack(f"<{n_tokens + begin_block * block_tokens}i", *range(n_tokens + begin_block * block_tokens))
    root = root_hash(context_hash(identity, key), codec, block_tokens, key)
    before = Chain(root, tokens, block_tokens, key).before(begin_block)
    own = tokens[4 * begin_block * block_tokens :]
    payload = payload_of([n_tokens])
    values: dict[str, Any] = {
        "identity": identity,
        "codec": codec,
        "block_tokens": block_tokens,
        "pos_begin": begin_block * block_tokens,
        "n_tokens": n_tokens,
        "parent": before.hex(),
        "chain": tuple(one.hex() for one in Chain(before, own, block_tokens, key).hashes()),
        "divisible": True,
        "payload_format": "lcg3",
        "payload_bytes": len(payload),
        "payload_blake3": payload_digest(payload, key),
        "decoded_bytes": 1000,
        "component_types": {"K": "f16"},
        "created_ms": 1_700_000_000_000,
    }
    return encode_prefix(Manifest(**{**values, **changes}), own, key) + payload


def reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda n, offset: data[offset : offset + n]


def read(data: bytes, key: bytes | None = None) -> SegmentPrefix:
    """All checks of a segment."""
    prefix = read_prefix(reader(data), len(data), key)
    read_tokens(prefix, reader(data), key)
    if read_payload_digest(prefix, reader(data), key) != prefix.payload_blake3:
        raise SegmentCorruptError("payload")
    return prefix


def crafted(data: bytes, offset: int, value: bytes) -> bytes:
    """The same with other bytes before the tokens and the right digest for them."""
    changed = bytearray(data)
    changed[offset : offset + len(value)] = value
    (tokens_offset,) = struct.unpack_from("<Q", data, 32)
    changed[96:128] = bytes(32)
    changed[96:128] = blake3.blake3(bytes(changed[:tokens_offset])).digest()
    return bytes(changed)


NAMES = st.text(st.characters(codec="utf-8"), max_size=8)


@settings(deadline=None, max_examples=100)
@given(
    n_tokens=st.integers(1, 40),
    block_tokens=st.integers(1, 20),
    begin_block=st.integers(0, 3),
    identity=st.builds(
        lambda namespace, window, scale: msgspec.structs.replace(
            IDENTITY,
            namespace=namespace,
            swa_window=window,
            adapters=(Adapter(kind="lora", blake3="ab", scale=scale),),
        ),
        NAMES,
        st.integers(0, 2**31 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    codec=st.sampled_from([EXACT, LOSSY]),
    error=st.floats(allow_nan=False, allow_infinity=False),
    key=st.none() | st.binary(min_size=32, max_size=32),
)
def test_round_trip(
    n_tokens: int,
    block_tokens: int,
    begin_block: int,
    identity: StoreIdentity,
    codec: CodecStamp,
    error: float,
    key: bytes | None,
) -> None:
    measured = (MeasuredError(metric="kl_mean", value=error),)
    data = make(
        n_tokens,
        block_tokens=block_tokens,
        begin_block=begin_block,
        identity=identity,
        codec=codec,
        key=key,
        measured_error=measured,
    )
    prefix = read(data, key)
    assert (prefix.identity, prefix.codec, prefix.measured_error) == (identity, codec, measured)
    assert (prefix.n_tokens, prefix.pos_begin) == (n_tokens, begin_block * block_tokens)
    first = begin_block * block_tokens
    assert read_tokens(prefix, reader(data), key).tolist() == list(range(first, first + n_tokens))
    assert prefix.plan.file_bytes == len(data) and prefix.plan.payload_offset % 4096 == 0
    assert len(prefix.chain) == 32 * -(-n_tokens // block_tokens)


def test_every_length() -> None:
    data = make()
    for n in [*range(700), *range(700, len(data), 97), len(data) - 1]:
        with pytest.raises(SegmentCorruptError):
            read(data[:n])
    with pytest.raises(SegmentCorruptError):
        read(data + b"\0")


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_bytes_are_refused_or_right(data: st.DataObject) -> None:
    """Whatever is changed: an error of the package, or what was there."""
    whole = make()
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        changed = bytearray(crafted(bytes(changed), 0, b"")) if changed[32:40] == whole[32:40] else changed
    try:
        prefix = read(bytes(changed))
    except SegmentError:
        return
    assert prefix.payload_blake3 == payload_digest(changed[prefix.plan.payload_offset :], None)


@pytest.mark.parametrize(
    ("offset", "value", "error"),
    [
        (0, b"\0", SegmentCorruptError),
        (8, struct.pack("<H", 2), SegmentVersionError),
        (8, struct.pack("<H", 0), SegmentVersionError),
        (10, struct.pack("<H", 2), SegmentCorruptError),
        (10, struct.pack("<H", 1), SegmentKeyError),
        (12, struct.pack("<I", 64), SegmentCorruptError),
        (16, struct.pack("<Q", 2**63), SegmentCorruptError),
        (24, struct.pack("<Q", 2**40), SegmentCorruptError),
        (24, struct.pack("<Q", 0), SegmentCorruptError),
        (40, struct.pack("<Q", 0), SegmentCorruptError),
        (48, struct.pack("<Q", 2**62), SegmentCorruptError),
        (48, struct.pack("<Q", 0), SegmentCorruptError),
        (56, struct.pack("<I", 2**32 - 1), SegmentCorruptError),
        (56, struct.pack("<I", 0), SegmentCorruptError),
        (60, b"\1", SegmentCorruptError),
        (64, b"\1", SegmentCorruptError),
        (95, b"\1", SegmentCorruptError),
        (128, b"[", SegmentCorruptError),
    ],
)
def test_crafted_headers_are_refused_before_memory_is_taken(
    offset: int, value: bytes, error: type[SegmentError]
) -> None:
    data = crafted(make(), offset, value)
    tracemalloc.start()
    with pytest.raises(error):
        read(data)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def remade(old: bytes, new: bytes) -> bytes:
    """A segment with another manifest of the same length."""
    data = make()
    assert len(old) == len(new) and data.count(old) == 1, data[128:900]
    return crafted(data, data.index(old), new)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        (b'"format":"segment/1"', b'"format":"segment/2"', SegmentVersionError, "segment/2"),
        (b'"name":"lcg3"', b'"name":"lcg9"', SegmentVersionError, "lcg9/1"),
        (b'"version":1', b'"version":2', SegmentVersionError, "lcg3/2"),
        (b'"n_tokens":10', b'"n_tokens":11', SegmentCorruptError, "other sizes"),
        (b'"n_tokens":10', b'"n_tokens":-1', SegmentCorruptError, "not possible"),
        (b'"block_tokens":4', b'"block_tokens":5', SegmentCorruptError, "chain"),
        (b'"block_tokens":4', b'"block_tokens":0', SegmentCorruptError, "not possible"),
        (b'"pos_begin":0', b'"pos_begin":1', SegmentCorruptError, "block"),
        (b'"pos_begin":0', b'"pos_bogin":0', SegmentCorruptError, "pos_bogin"),
        (b'"divisible":true', b'"divisible":null', SegmentCorruptError, "divisible"),
        (b'"decoded_bytes":1000', b'"decoded_bytes":0000', SegmentCorruptError, "cannot be used"),
        (b'"payload_format":"lcg3"', b'"payload_format":"lcg1"', SegmentCorruptError, "payload_format"),
        (b'"namespace":""', b'"namespace":12', SegmentCorruptError, "namespace"),
        (b'"entry_class":"exact"', b'"entry_class":"lossy"', SegmentCorruptError, "chain"),
        (b'"endianness":"little"', b'"endianness":"middle"', SegmentCorruptError, "endianness"),
    ],
)  # fmt: skip
def test_crafted_manifests_are_refused(old: bytes, new: bytes, error: type[SegmentError], message: str) -> None:
    with pytest.raises(error, match=message):
        read(remade(old, new))


def test_another_token_is_found() -> None:
    data = bytearray(make())
    (tokens_offset,) = struct.unpack_from("<Q", data, 32)
    data[tokens_offset] ^= 1
    with pytest.raises(SegmentCorruptError, match="tokens"):
        read(bytes(data))


def test_what_cannot_be_written() -> None:
    for changes in (
        {"pos_begin": 2},
        {"chain": ()},
        {"payload_bytes": 0},
        {"decoded_bytes": 2**49},
        {"parent": "00" * 32},
        {"payload_blake3": "00"},
    ):
        with pytest.raises((ValueError, SegmentError)):
            make(**changes)
    with pytest.raises(ValueError, match="finite"):
        MeasuredError(metric="rms", value=float("nan"))


# the page


def table(first_column: str) -> list[list[str]]:
    lines = PAGE.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_column} |"))
    rows = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_page_has_the_header_fields() -> None:
    rows = table("Offset")
    end = 0
    sizes = {"u16": 2, "u32": 4, "u64": 8}
    for offset, size, type_, name, _ in rows:
        assert int(offset) == end, name
        assert sizes.get(type_, int(size)) == int(size)
        end += int(size)
    assert end == HEADER.size
    assert [row[1] for row in rows] == [str(n) for n in (8, 2, 2, 4, 8, 8, 8, 8, 8, 4, 4, 32, 32)]
    assert MAGIC.hex(" ").upper() in rows[0][4]


@pytest.mark.parametrize(
    ("title", "struct_type"),
    [("Manifest field", Manifest), ("Identity field", StoreIdentity), ("Codec field", CodecStamp)],
)
def test_the_page_has_every_field(title: str, struct_type: type[msgspec.Struct]) -> None:
    assert [row[0] for row in table(title)] == list(struct_type.__struct_fields__)


def test_the_example_of_the_page() -> None:
    (head,) = blocks_of("store-segment", "hex")
    data = bytes.fromhex(head)
    (manifest,) = blocks_of("store-segment", "json")
    whole = next((COMPAT / "store-1" / "segments").glob("*/*.seg")).parent.parent
    stored = {file.stem: file.read_bytes() for file in whole.glob("*/*.seg")}
    (match,) = (one for one in stored.values() if one[: len(data)] == data)
    prefix = read_prefix(reader(match), len(match))
    assert match[128 : 128 + len(manifest.strip())].decode() == manifest.strip()
    assert prefix.n_tokens == 10


# stores of earlier versions


@pytest.mark.parametrize("path", sorted(COMPAT.glob("store-*")), ids=lambda path: path.name)
def test_stores_of_every_version_are_read(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "s"
    shutil.copytree(path, copy)
    copy.chmod(0o700)  # whatever the mask of the checkout
    with Store(copy, mode="r") as store:
        tokens = list(range(10))
        with store.snapshot(IDENTITY, tokens) as snapshot:
            assert snapshot.n_tokens == 10 and snapshot.miss is None
            assert [bytes(part.payload) for part in snapshot.parts] == [payload_of(tokens)]
        longer = [*range(8), 50, 51, 52, 53]
        with store.snapshot(IDENTITY, longer) as snapshot:
            assert snapshot.n_tokens == 12 and len(snapshot.parts) == 2
        with store.snapshot(IDENTITY, [7] * 6, lossy=True) as snapshot:
            assert snapshot.n_tokens == 6 and not snapshot.is_exact
            assert snapshot.parts[0].prefix.measured_error[0].metric == "kl_mean"
        assert store.verify().ok and store.stats().n_segments == 3
