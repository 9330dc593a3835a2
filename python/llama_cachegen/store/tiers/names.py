"""What a segment is called in a tier, so that who has only the tokens of a prompt finds it."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..chain import Chain
from ..index import Row
from ..segment import FORMAT_VERSION, SegmentPrefix

__all__ = ["SegmentName", "block_group", "name_of", "name_of_row", "tail_group"]

_GROUP = re.compile(r"[bt][0-9a-f]{64}\Z")
_ENTRY = re.compile(r"([1-9][0-9]{0,9})-([0-9a-f]{64})\Z")


class SegmentName(NamedTuple):
    """Name of a segment's object.

    Attributes:
        group: "b" and the hash of its first block; of a segment of less than one block "t" and the hash of what is
            before it. A prompt gives these hashes, so whoever has it can ask for the group.
        n_tokens: in the segment.
        key: of the segment: hash of its last block.
    """

    group: str
    n_tokens: int
    key: bytes

    @property
    def entry(self) -> str:
        """The name within its group."""
        return f"{self.n_tokens}-{self.key.hex()}"

    @property
    def path(self) -> str:
        """The whole name: "v1/GROUP/N_TOKENS-KEY". The number is that of the segment format."""
        return f"v{FORMAT_VERSION}/{self.group}/{self.entry}"

    @classmethod
    def of_entry(cls, group: str, entry: str) -> SegmentName | None:
        """What a tier listed; None if it is no name of a segment."""
        found = _ENTRY.match(entry)
        if not _GROUP.match(group) or found is None:
            return None
        return cls(group, int(found[1]), bytes.fromhex(found[2]))

    def matches_whole(self, chain: Chain, block: int) -> bool:
        """Whether all of its tokens are those of a prompt from a block on: its key then is one of the prompt's."""
        n_blocks, rest = divmod(self.n_tokens, chain.block_tokens)
        if (block + n_blocks) * chain.block_tokens + rest > chain.n_tokens:
            return False
        end = chain.partial(block + n_blocks, rest) if rest else chain.before(block + n_blocks)
        return end == self.key


def block_group(first: bytes) -> str:
    """The group of segments whose first block has this hash."""
    return f"b{first.hex()}"


def tail_group(parent: bytes) -> str:
    """The group of segments of less than a block that come right after this hash."""
    return f"t{parent.hex()}"


def name_of(prefix: SegmentPrefix) -> SegmentName:
    """The name that a segment has in every tier."""
    is_tail = prefix.n_tokens < prefix.block_tokens
    group = tail_group(prefix.parent) if is_tail else block_group(prefix.first)
    return SegmentName(group, prefix.n_tokens, prefix.key)


def name_of_row(row: Row, block_tokens: int) -> SegmentName:
    """The same, by what the local index has of it."""
    group = tail_group(row.parent) if row.n_tokens < block_tokens else block_group(row.first)
    return SegmentName(group, row.n_tokens, row.key)
