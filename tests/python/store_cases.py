"""What the tests of the store have in common: identities, payloads, and a store that is quick to fill."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from llama_cachegen.page import ComponentKind, PageComponent
from llama_cachegen.store import CodecStamp, SaveResult, Snapshot, Store, StoreIdentity, store_identity
from test_page_file import IDENTITY as PAGE_IDENTITY

BLOCK = 4
"""Tokens of a block: small, so that few tokens make many of them."""
EXACT = CodecStamp(name="lcg3", profile="exact")
LOSSY = CodecStamp(name="lcg3", profile="balanced", calibration="ab" * 32, entry_class="lossy")
NATIVE = CodecStamp(name="native")


def component(layer: int, kind: ComponentKind, **changes: Any) -> PageComponent:
    values: dict[str, Any] = {
        "layer": layer, "kind": kind, "type": 1, "transposed": False, "n_rot": 0, "n_tokens": 1, "n_channels": 64,
        "row_bytes": 128, "offset": 0, "n_bytes": 128, "xxh3": 0,
    }  # fmt: skip
    return PageComponent(**{**values, **changes})


COMPONENTS = [component(layer, kind) for layer in range(3) for kind in (ComponentKind.K, ComponentKind.V)]
IDENTITY = store_identity(PAGE_IDENTITY, COMPONENTS)


def changed(**values: Any) -> StoreIdentity:
    return msgspec.structs.replace(IDENTITY, **values)


def payload_of(tokens: Sequence[int], n_bytes: int = 200) -> bytes:
    """Bytes that begin like an archive and that only these tokens give."""
    return b"LCG3" + random.Random(repr(list(tokens))).randbytes(n_bytes - 4)


def open_store(path: Path, **options: Any) -> Store:
    return Store(path, **{"block_tokens": BLOCK, "min_free_bytes": 0, **options})


def save(
    store: Store,
    tokens: Sequence[int],
    *,
    identity: StoreIdentity = IDENTITY,
    codec: CodecStamp = EXACT,
    n_bytes: int = 200,
    divisible: bool = True,
) -> SaveResult:
    """Save what the store lacks of these tokens."""
    begin = store.missing_from(identity, codec, tokens)
    if begin == len(tokens):
        begin = 0
    return store.save(
        identity,
        codec,
        tokens,
        payload_of(tokens[begin:], n_bytes),
        pos_begin=begin,
        payload_format="lcg3",
        decoded_bytes=1000,
        component_types={"K": "f16", "V": "f16"},
        divisible=divisible,
    )


def check_snapshot(snapshot: Snapshot, tokens: Sequence[int]) -> int:
    """Whatever a snapshot holds is what was saved. Returns its tokens."""
    end = 0
    for part in snapshot.parts:
        assert part.pos_begin == end
        have = part.tokens.tolist()
        assert have[: part.n_tokens] == list(tokens[end : end + part.n_tokens])
        assert bytes(part.payload) == payload_of(have, part.prefix.payload_bytes)
        end += part.n_tokens
    assert end == snapshot.n_tokens
    assert (snapshot.miss is None) == (end == len(tokens))
    return end


def held(store: Store, tokens: Sequence[int], **options: Any) -> int:
    """Tokens of a prompt that the store gives, checked."""
    with store.snapshot(IDENTITY, tokens, **options) as snapshot:
        return check_snapshot(snapshot, tokens)


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A fresh directory, in memory where that is possible: these tests make thousands of files and wait for each."""
    path = Path(tempfile.mkdtemp(prefix="llama-cachegen-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def segment_files(path: Path) -> list[Path]:
    return sorted(path.glob("segments/*/*.seg"))


@dataclasses.dataclass
class FakeClock:
    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def flip(path: Path, offset: int, mask: int = 0xFF) -> None:
    """Change one byte in place, leaving the times as they were."""
    found = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
