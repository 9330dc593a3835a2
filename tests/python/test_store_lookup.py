"""The look-up along the chain of hashes, against one that tries every segment at every place."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st
from llama_cachegen.store.chain import HASH_BYTES, Chain
from llama_cachegen.store.index import SHORT_HASH_BYTES, Index, short_hashes
from llama_cachegen.store.lookup import common_tokens, walk
from llama_cachegen.store.segment import SegmentPrefix, plan_segment
from store_cases import BLOCK, EXACT, IDENTITY

ROOT = bytes(range(HASH_BYTES))


def tokens_of(texts: list[int]) -> bytes:
    return b"".join(one.to_bytes(4, "little") for one in texts)


def prefix_of(tokens: list[int], begin: int, divisible: bool) -> SegmentPrefix:
    """A segment of these tokens from position `begin`, a multiple of a block."""
    chain = Chain(ROOT, tokens_of(tokens), BLOCK)
    block = begin // BLOCK
    own = Chain(chain.before(block), tokens_of(tokens[begin:]), BLOCK).hashes()
    n_tokens = len(tokens) - begin
    return SegmentPrefix(
        plan=plan_segment(100, n_tokens, 100), identity=IDENTITY, codec=EXACT, context=bytes(32), root=ROOT,
        block_tokens=BLOCK, pos_begin=begin, n_tokens=n_tokens, parent=chain.before(block), chain=b"".join(own),
        divisible=divisible, payload_format="lcg3", payload_bytes=100, payload_blake3="00" * 32, decoded_bytes=100,
        component_types={}, measured_error=(), created_ms=1,
    )  # fmt: skip


def longest(segments: list[tuple[list[int], int, bool]], prompt: list[int]) -> int:
    """Tokens of the longest prefix, found by trying everything."""
    reached, n_best = {0}, 0
    todo = [0]
    for position in todo:
        for tokens, begin, divisible in segments:
            if begin != position or tokens[:begin] != prompt[:begin]:
                continue
            n = 0
            while begin + n < min(len(tokens), len(prompt)) and tokens[begin + n] == prompt[begin + n]:
                n += 1
            is_whole = begin + n == len(tokens)
            n -= 0 if is_whole else n % BLOCK
            if n == 0 or not (divisible or is_whole):
                continue
            n_best = max(n_best, begin + n)
            after = begin + n // BLOCK * BLOCK
            # past the end of its last whole block others may go further than its partial one
            if (divisible or n % BLOCK == 0) and after not in reached:
                reached.add(after)
                todo.append(after)
    return n_best


# prompts that part late and in many places: two texts, from one to the other at some position
prompts = st.builds(
    lambda n, at: [1 if i < at else 2 for i in range(n)], st.integers(1, 160 * BLOCK), st.integers(0, 160 * BLOCK)
)


@st.composite
def stores(draw: st.DrawFn) -> list[tuple[list[int], int, bool]]:
    segments = []
    for tokens in draw(st.lists(prompts, max_size=4)):
        begins = draw(st.sets(st.integers(0, (len(tokens) - 1) // BLOCK), max_size=6)) | {0}
        if draw(st.booleans()):
            begins = set(range(-(-len(tokens) // BLOCK)))
        places = [begin * BLOCK for begin in sorted(begins)] + [len(tokens)]
        for begin, end in itertools.pairwise(places):
            segments.append((tokens[:end], begin, draw(st.booleans()) if len(begins) < 8 else True))
    return segments


@settings(max_examples=300, deadline=None)
@given(stores(), prompts)
@example([([1] * (i * BLOCK + BLOCK), i * BLOCK, True) for i in range(150)], [1] * (150 * BLOCK))
@example([([1] * (9 * BLOCK), 0, True), ([1] * (40 * BLOCK), 9 * BLOCK, False)], [1] * (41 * BLOCK))
def test_the_longest_prefix_is_found(segments: list[tuple[list[int], int, bool]], prompt: list[int]) -> None:
    index = Index.create(":memory:")
    try:
        index.begin()
        for tokens, begin, divisible in segments:
            index.add(prefix_of(tokens, begin, divisible), used_ms=1)
        index.link()
        index.commit()
        steps = walk(index, Chain(ROOT, tokens_of(prompt), BLOCK))
    finally:
        index.close()
    # of segments of one name the last one saved counts
    known = {b"".join(Chain(ROOT, tokens_of(t), BLOCK).hashes())[-HASH_BYTES:]: (t, b, d) for t, b, d in segments}
    assert sum(step.n_tokens for step in steps) == longest(list(known.values()), prompt)
    position = 0
    for step in steps:
        assert step.row.pos_begin == position
        position += step.n_tokens


def test_the_index_asks_for_blocks_ahead() -> None:
    """150 segments of a block each are a few questions, and one segment of 150 blocks is two."""
    prompt = [1] * (150 * BLOCK)
    for segments, most in (
        ([(prompt[: i * BLOCK + BLOCK], i * BLOCK, True) for i in range(150)], 6),
        ([(prompt, 0, True)], 2),
    ):
        index = Index.create(":memory:")
        try:
            index.begin()
            for tokens, begin, divisible in segments:
                index.add(prefix_of(tokens, begin, divisible), used_ms=1)
            index.commit()
            asked: list[str] = []
            index._db.set_trace_callback(asked.append)
            steps = walk(index, Chain(ROOT, tokens_of(prompt), BLOCK))
            index._db.set_trace_callback(None)
        finally:
            index.close()
        assert sum(step.n_tokens for step in steps) == len(prompt)
        assert 0 < len(asked) <= most, asked


def test_short_hashes() -> None:
    chain = bytes(range(3 * HASH_BYTES))
    expected = b"".join(chain[i * HASH_BYTES : i * HASH_BYTES + SHORT_HASH_BYTES] for i in range(3))
    assert short_hashes(chain) == expected
    assert short_hashes(chain[:HASH_BYTES]) == chain[:SHORT_HASH_BYTES]


def test_an_index_proposes_and_the_segment_decides() -> None:
    """A hash that is equal in its first bytes only is found by the index, and refused by who compares all."""
    tokens = [1] * (2 * BLOCK)
    chain = Chain(ROOT, tokens_of(tokens), BLOCK)
    first, second = chain.hashes()
    forged = first + second[:SHORT_HASH_BYTES] + bytes(HASH_BYTES - SHORT_HASH_BYTES)
    assert common_tokens(short_hashes(forged), 2 * BLOCK, chain, 0, SHORT_HASH_BYTES) == 2 * BLOCK
    assert common_tokens(forged, 2 * BLOCK, chain, 0) == BLOCK
