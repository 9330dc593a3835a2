"""The longest prefix of a prompt that tiers have and the local store does not, brought here segment by segment."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence

from ...errors import SegmentCorruptError, SegmentError, StoreError
from ..core import StoreCore
from ..lookup import common_tokens, continue_at, walk
from ..segment import HEAD_BYTES, SegmentPrefix
from .adopting import adopt, row_before
from .check import check_head, check_segment
from .guard import GuardedTier
from .names import SegmentName, block_group, tail_group

__all__ = ["FetchReport", "fetch_chain"]

_log = logging.getLogger(__name__)
_MAX_LISTED = 256
_MAX_HEADS = 8
_MAX_LISTS = 64
"""Bounds of what one question to a tier may cost, however many segments begin alike."""


@dataclasses.dataclass
class FetchReport:
    """What tiers added to the local store for one prompt.

    Attributes:
        n_tokens_before, n_tokens: of the prompt that the local store had, and has.
        n_segments, n_bytes: that came.
        by_tier: segments by the title of the tier they came from.
        is_late: the deadline ended it.
        not_kept: why the local store did not take a segment, "" if it took all.
    """

    n_tokens_before: int = 0
    n_tokens: int = 0
    n_segments: int = 0
    n_bytes: int = 0
    by_tier: dict[str, int] = dataclasses.field(default_factory=dict)
    is_late: bool = False
    not_kept: str = ""


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """A segment of a tier and how many of its first tokens the prompt has too."""

    name: SegmentName
    n_tokens: int


class _Search:
    """For one chain. Blocks are asked for from where the local prefix ends, then from where its segments begin."""

    def __init__(
        self, core: StoreCore, root: bytes, tokens: bytes, tiers: Sequence[GuardedTier], deadline: float,
        report: FetchReport,
    ) -> None:  # fmt: skip
        self.core = core
        self.root = root
        self.tokens = tokens
        self.chain = core._chain(root, tokens)
        self.tiers = tiers
        self.deadline = deadline
        self.report = report
        self.n_have = 0
        self.todo: list[int] = []
        self.asked: set[tuple[int, int]] = set()

    def look(self) -> None:
        """Ask the local index how far it goes now, and note from which blocks more may come."""
        core = self.core
        with core._mutex:
            core._refresh()
            steps = core._asking(lambda index: walk(index, self.chain))
        self.n_have = sum(step.n_tokens for step in steps)
        begins = [step.row.pos_begin // core.block_tokens for step in steps]
        self.note(continue_at(steps, core.block_tokens)[0] // core.block_tokens, *reversed(begins), 0)

    def note(self, *blocks: int) -> None:
        self.todo = list(dict.fromkeys([*blocks, *self.todo]))

    def run(self) -> None:
        """Until the local store has the whole prompt, nothing more is found, or time is up."""
        self.look()
        while self.n_have < self.chain.n_tokens and len(self.asked) < _MAX_LISTS:
            open_questions = (
                (block, i) for block in self.todo for i in range(len(self.tiers)) if (block, i) not in self.asked
            )
            question = next(open_questions, None)
            if question is None:
                return
            if time.monotonic() >= self.deadline:
                return
            self.asked.add(question)
            block, i = question
            if self.bring(self.tiers[i], i, block):
                self.look()
            if self.report.not_kept:
                return

    def bring(self, tier: GuardedTier, i_tier: int, block: int) -> bool:
        """Bring the segment that goes on furthest from a block. Returns whether one came."""
        for candidate in self.candidates(tier, block):
            if block * self.chain.block_tokens + candidate.n_tokens <= self.n_have:
                # it goes no further itself; what continues it may
                self.note(block + candidate.n_tokens // self.chain.block_tokens)
                continue
            data = tier.get(candidate.name, tier.deadline(self.deadline))
            if data is None:
                continue
            prefix = self.checked(tier, candidate.name, data)
            if prefix is None or prefix.parent != self.chain.before(block):
                continue
            if self.keep(data, prefix):
                self.report.n_segments += 1
                self.report.n_bytes += len(data)
                self.report.by_tier[tier.title] = self.report.by_tier.get(tier.title, 0) + 1
                for near in self.tiers[:i_tier]:
                    if near.is_near:
                        near.put(candidate.name, data, near.deadline(self.deadline))
                return True
            if self.report.not_kept:
                return False
        return False

    def candidates(self, tier: GuardedTier, block: int) -> Iterator[_Candidate]:
        """Those that begin at a block, the ones that go furthest first."""
        chain = self.chain
        first = chain.full(block)
        if first is not None:
            names = tier.list_group(block_group(first), _MAX_LISTED, tier.deadline(self.deadline))
            names.sort(key=lambda name: -name.n_tokens)
            found = [_Candidate(name, name.n_tokens) for name in names if name.matches_whole(chain, block)]
            longest = max((one.n_tokens for one in found), default=0)
            # the names of the others do not tell how far they go with the prompt; their headers do
            others = [name for name in names if not name.matches_whole(chain, block) and name.n_tokens > longest]
            for name in others[:_MAX_HEADS]:
                n_tokens = self.n_common(tier, name, block)
                if n_tokens:
                    found.append(_Candidate(name, n_tokens))
            yield from sorted(found, key=lambda one: -one.n_tokens)
        n_left = chain.n_tokens - block * chain.block_tokens
        n_most = min(chain.block_tokens - 1, n_left)
        if n_most > 0 and block * chain.block_tokens + n_most > self.n_have:
            names = tier.list_group(tail_group(chain.before(block)), _MAX_LISTED, tier.deadline(self.deadline))
            for name in sorted(names, key=lambda name: -name.n_tokens):
                if name.n_tokens < chain.block_tokens and name.matches_whole(chain, block):
                    yield _Candidate(name, name.n_tokens)

    def n_common(self, tier: GuardedTier, name: SegmentName, block: int) -> int:
        """Tokens of a segment that the prompt has too, by its header; 0 if it cannot be used."""
        needed = HEAD_BYTES
        while True:
            data = tier.head(name, needed, tier.deadline(self.deadline))
            if data is None:
                return 0
            try:
                found = check_head(data, name, self.core._key)
            except SegmentError as error:
                self.refuse(tier, name, error)
                return 0
            if isinstance(found, int):
                if found <= needed:
                    return 0
                needed = found
                continue
            n = common_tokens(found.chain, found.n_tokens, self.chain, block)
            return n if found.divisible or n == found.n_tokens else 0

    def checked(self, tier: GuardedTier, name: SegmentName, data: bytes) -> SegmentPrefix | None:
        """What a segment is that came, None if it is refused."""
        core = self.core
        try:
            return check_segment(
                data, name, core._key, block_tokens=core.block_tokens, now_ms=core._now_ns() // 1_000_000
            )
        except SegmentError as error:
            self.refuse(tier, name, error)
            return None

    def refuse(self, tier: GuardedTier, name: SegmentName, error: SegmentError) -> None:
        tier.count(**{"n_broken" if isinstance(error, SegmentCorruptError) else "n_unreadable": 1})
        tier.mark_broken(name, str(error))

    def keep(self, data: bytes, prefix: SegmentPrefix) -> bool:
        """Publish locally what came. Returns whether it is new."""
        core = self.core
        try:
            with core._mutex:
                parent, keys = row_before(core, self.root, self.tokens, prefix.pos_begin)
            return adopt(core, data, prefix, parent, keys)
        except (StoreError, OSError) as error:
            _log.warning("%s: segment %s came and was not kept: %s", core.path, prefix.key.hex()[:12], error)
            self.report.not_kept = str(error)
            return False


def fetch_chain(
    core: StoreCore, root: bytes, tokens: bytes, tiers: Sequence[GuardedTier], deadline: float
) -> FetchReport:
    """Bring what the local store lacks of a prompt.

    Args:
        root: hash of identity and codec.
        tokens: of the prompt, little-endian i32.
        tiers: asked in this order.
        deadline: of all of it, on time.monotonic.
    """
    report = FetchReport()
    search = _Search(core, root, tokens, tiers, deadline, report)
    search.look()
    report.n_tokens_before = search.n_have
    search.run()
    report.n_tokens = search.n_have
    report.is_late = report.n_tokens < search.chain.n_tokens and time.monotonic() >= deadline
    return report
