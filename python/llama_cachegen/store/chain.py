"""Token blocks, each named by a hash of everything before it.

root = H(identity, codec, block size); block = H(hash before it, its tokens). A hash stands for all tokens up to its
end, so two prompts share exactly the blocks whose hashes are equal. H is BLAKE3, keyed if the store is.
"""

from __future__ import annotations

from typing import Any

import blake3
import msgspec
import numpy as np
from numpy.typing import NDArray

from .identity import CodecStamp, StoreIdentity

__all__ = ["DEFAULT_BLOCK_TOKENS", "HASH_BYTES", "Chain", "context_hash", "root_hash", "token_bytes"]

DEFAULT_BLOCK_TOKENS = 256
HASH_BYTES = 32
_CONTEXT = b"llama-cachegen store context 1\0"
_ROOT = b"llama-cachegen store root 1\0"
_encoder = msgspec.json.Encoder(order="sorted")


def _hash(data: bytes, key: bytes | None) -> bytes:
    return (blake3.blake3(data) if key is None else blake3.blake3(data, key=key)).digest()


def context_hash(identity: StoreIdentity, key: bytes | None = None) -> bytes:
    """32 bytes that stand for an identity. The model's name is not in them."""
    compared = msgspec.structs.replace(identity, model_name="")
    return _hash(_CONTEXT + _encoder.encode(compared), key)


def root_hash(context: bytes, codec: CodecStamp, block_tokens: int, key: bytes | None = None) -> bytes:
    """32 bytes that every chain of a context and a codec begins with."""
    return _hash(_ROOT + context + block_tokens.to_bytes(4, "little") + _encoder.encode(codec), key)


def token_bytes(tokens: NDArray[Any]) -> bytes:
    """Little-endian i32, as in a segment."""
    return np.ascontiguousarray(tokens, dtype="<i4").tobytes()


class Chain:
    """The hashes of a row of tokens, made as they are asked for.

    Args:
        before: root, or hash of the block before the first token.
        tokens: little-endian i32.
        block_tokens: tokens of a block.
        key: of a keyed store.
    """

    def __init__(self, before: bytes, tokens: bytes, block_tokens: int, key: bytes | None = None) -> None:
        self._hashes = [before]
        self._tokens = tokens
        self._step = 4 * block_tokens
        self._key = key
        self.block_tokens = block_tokens
        self.n_tokens = len(tokens) // 4
        self.n_full = self.n_tokens // block_tokens

    def before(self, block: int) -> bytes:
        """Hash of all before a block; the block must be at most `n_full`."""
        hashes, step = self._hashes, self._step
        while len(hashes) <= block:
            i = len(hashes) - 1
            hashes.append(_hash(hashes[-1] + self._tokens[i * step : (i + 1) * step], self._key))
        return hashes[block]

    def full(self, block: int) -> bytes | None:
        """Hash of a whole block, None if there are not enough tokens."""
        return self.before(block + 1) if block < self.n_full else None

    def partial(self, block: int, n_tokens: int) -> bytes | None:
        """Hash of the first tokens of a block, None if there are not as many."""
        begin = block * self._step
        if begin + 4 * n_tokens > len(self._tokens):
            return None
        return _hash(self.before(block) + self._tokens[begin : begin + 4 * n_tokens], self._key)

    def hashes(self) -> list[bytes]:
        """Of every block, the last of which may be a partial one."""
        found = [self.before(i + 1) for i in range(self.n_full)]
        rest = self.n_tokens - self.n_full * self.block_tokens
        if rest:
            last = self.partial(self.n_full, rest)
            assert last is not None
            found.append(last)
        return found
