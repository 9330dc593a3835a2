"""The longest prefix of a prompt that a store has: from segment to segment along the chain of hashes."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from .chain import HASH_BYTES, Chain
from .index import SHORT_HASH_BYTES, Index, Row

__all__ = ["Step", "common_tokens", "continue_at", "walk"]


class Step(NamedTuple):
    """A segment on the way, and how many of its first tokens the prompt has too."""

    row: Row
    n_tokens: int


_FIRST_AHEAD, _MOST_AHEAD = 8, 64


def common_tokens(hashes: bytes, n_tokens: int, chain: Chain, block: int, hash_bytes: int = HASH_BYTES) -> int:
    """Tokens that a segment's blocks have in common with a prompt from a block on, in whole blocks and its own last.

    Args:
        hashes, n_tokens: of the segment.
        chain: of the prompt.
        block: where the segment would begin in it.
        hash_bytes: how much of each hash is given.
    """
    n_full, rest = divmod(n_tokens, chain.block_tokens)
    for i in range(n_full):
        full = chain.full(block + i)
        if full is None or full[:hash_bytes] != hashes[i * hash_bytes : (i + 1) * hash_bytes]:
            return i * chain.block_tokens
    if rest:
        last = chain.partial(block + n_full, rest)
        if last is not None and last[:hash_bytes] == hashes[n_full * hash_bytes :]:
            return n_tokens
    return n_full * chain.block_tokens


class _Rows:
    """The index's segments by the block of a prompt they begin with, asked for some blocks ahead.

    A prompt that is one segment is one question, and one of a segment for each block a few.
    """

    def __init__(self, index: Index, chain: Chain) -> None:
        self._index = index
        self._chain = chain
        self._rows: dict[int, list[Row]] = {}
        self._n_known = 0  # blocks, from the first
        self._n_ahead = 1

    def at(self, block: int) -> list[Row]:
        """Those that begin with a whole block of the prompt."""
        chain = self._chain
        if block >= self._n_known and block < chain.n_full:
            end = min(block + self._n_ahead, chain.n_full)
            blocks = {chain.before(i + 1): i for i in range(block, end)}
            for row in self._index.starting_with(list(blocks)):
                self._rows.setdefault(blocks[row.first], []).append(row)
            self._n_known = end
            self._n_ahead = min(max(self._n_ahead * 8, _FIRST_AHEAD), _MOST_AHEAD)
        return self._rows.get(block, [])


def _steps(index: Index, rows: _Rows, chain: Chain, block: int) -> Iterator[Step]:
    """The segments that go on from a block, as far as the prompt goes with them."""
    is_any = False
    for row in rows.at(block):
        n = common_tokens(row.chain, row.n_tokens, chain, block, SHORT_HASH_BYTES)
        if n and (row.divisible or n == row.n_tokens):
            is_any = True
            yield Step(row, n)
    if is_any:
        return  # less than a block goes less far
    most = min(chain.block_tokens - 1, chain.n_tokens - block * chain.block_tokens)
    for n in index.tail_lengths(chain.before(block), most):
        last = chain.partial(block, n)
        for row in index.starting_with([last]) if last is not None else ():
            yield Step(row, n)
            return


def walk(index: Index, chain: Chain) -> list[Step]:
    """The segments that hold the longest known prefix of a prompt, in order.

    At most one look into the index for each segment on the way and two more; each takes O(log n) of n entries.

    Raises:
        sqlite3.Error: the index cannot be used.
    """
    step_tokens = chain.block_tokens
    rows = _Rows(index, chain)
    came_by: dict[int, tuple[int, Step] | None] = {0: None}
    todo = [0]
    n_best = 0
    best: tuple[int, Step | None] = (0, None)
    while todo:
        block = heapq.heappop(todo)
        for step in _steps(index, rows, chain, block):
            blocks, rest = divmod(step.n_tokens, step_tokens)
            n_tokens = block * step_tokens + step.n_tokens
            if n_tokens > n_best:
                n_best, best = n_tokens, (block, step)
            # past the end of its last whole block others may go further than its partial one
            if blocks and (not rest or step.row.divisible) and block + blocks not in came_by:
                came_by[block + blocks] = (block, Step(step.row, blocks * step_tokens))
                heapq.heappush(todo, block + blocks)
    steps: list[Step] = []
    block, last = best
    if last is not None:
        steps.append(last)
    while (before := came_by[block]) is not None:
        block = before[0]
        steps.append(before[1])
    return steps[::-1]


def continue_at(steps: list[Step], block_tokens: int) -> tuple[int, Row | None]:
    """Where an entry that goes on after these would begin, in tokens, and the segment before it.

    It is where the last whole block ends; within a segment that can be used as a whole only, where it begins.
    """
    n_tokens, last = 0, None
    for row, n in steps:
        whole = n - n % block_tokens
        if whole == 0 or (whole < n and not row.divisible):
            break
        n_tokens, last = n_tokens + whole, row
    return n_tokens, last
