"""Any sequence of what can be done to a store, compared with a list of what was saved.

50 sequences of up to 40 steps by default; LLAMA_CACHEGEN_STORE_EXAMPLES sets another number. Prints how many steps.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from conftest import NATIVE_REPORTS
from faulty_files import QuietFiles
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from llama_cachegen.errors import MissReason, StoreChainError, StoreFullError
from llama_cachegen.store import CodecStamp, Store
from store_cases import BLOCK, EXACT, IDENTITY, LOSSY, check_snapshot, flip, open_store, payload_of, save, segment_files

N_EXAMPLES = int(os.environ.get("LLAMA_CACHEGEN_STORE_EXAMPLES", "50"))
N_STEPS = 40
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=13)
CODECS = st.sampled_from([EXACT, LOSSY])


class StoreMachine(RuleBasedStateMachine):
    """`saved` is what was saved and not knowingly lost since; nothing but room or damage may take it."""

    n_done: ClassVar[dict[str, int]] = {"sequences": 0, "steps": 0}

    def __init__(self) -> None:
        super().__init__()
        self.n_done["sequences"] += 1
        self.folder = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        self.path = Path(self.folder, "s")
        self.saved: set[tuple[tuple[int, ...], str]] = set()
        self.options: dict[str, Any] = {}
        self.store: Store = open_store(self.path, make_files=QuietFiles)

    @initialize(budget=st.sampled_from([1 << 30, 30_000]))
    def choose_budget(self, budget: int) -> None:
        self.options = {"budget_bytes": budget}
        self.reopen(False)

    @property
    def is_tight(self) -> bool:
        return self.options.get("budget_bytes", 0) < 1 << 20

    @rule(tokens=PROMPTS, codec=CODECS)
    def save(self, tokens: list[int], codec: CodecStamp) -> None:
        try:
            save(self.store, tokens, codec=codec)
        except StoreFullError:
            assert self.is_tight
            return
        self.saved.add((tuple(tokens), codec.profile))
        assert self.check(tokens, codec) == len(tokens)

    @rule(prompts=st.lists(PROMPTS, min_size=1, max_size=3), codec=CODECS)
    def save_later(self, prompts: list[list[int]], codec: CodecStamp) -> None:
        """Several that wait at once; each counts on those before it, and fails with them."""
        futures = []
        for tokens in prompts:
            begin = self.store.missing_from(IDENTITY, codec, tokens, with_queued=True) % len(tokens)
            futures.append(
                self.store.save_later(
                    IDENTITY, codec, tokens, payload_of(tokens[begin:]), pos_begin=begin, payload_format="lcg3",
                    decoded_bytes=1000, component_types={"K": "f16", "V": "f16"},
                )
            )  # fmt: skip
        self.store.drain()
        for tokens, future in zip(prompts, futures, strict=True):
            error = future.exception()
            if error is None:
                self.saved.add((tuple(tokens), codec.profile))
            else:
                assert self.is_tight and isinstance(error, (StoreFullError, StoreChainError)), error
        assert self.store.queued_bytes == 0

    @rule(tokens=PROMPTS, codec=CODECS)
    def ask(self, tokens: list[int], codec: CodecStamp) -> None:
        n = self.check(tokens, codec)
        if not self.is_tight:
            assert n >= self.expected(tokens, codec)
        assert (self.store.why_miss(IDENTITY, tokens, lossy=True, codecs=[codec]) is None) == (n == len(tokens))

    def check(self, tokens: list[int], codec: CodecStamp) -> int:
        with self.store.snapshot(IDENTITY, tokens, lossy=True, codecs=[codec]) as snapshot:
            return check_snapshot(snapshot, tokens)

    def expected(self, tokens: list[int], codec: CodecStamp) -> int:
        """What is known to be there of a prompt, in whole blocks or as a whole prompt."""
        best = 0
        for have, profile in self.saved:
            if profile == codec.profile:
                n = 0
                while n < min(len(have), len(tokens)) and have[n] == tokens[n]:
                    n += 1
                best = max(best, n if n == len(have) else n - n % BLOCK)
        return best

    @rule(without_index=st.booleans())
    def reopen(self, without_index: bool) -> None:
        self.store.close()
        if without_index:
            (self.path / "index.sqlite").unlink(missing_ok=True)
        self.store = open_store(self.path, make_files=QuietFiles, **self.options)

    @rule(tokens=PROMPTS)
    def read(self, tokens: list[int]) -> None:
        with open_store(self.path, mode="r") as reader, reader.snapshot(IDENTITY, tokens) as snapshot:
            n = check_snapshot(snapshot, tokens)
            assert n == self.check(tokens, EXACT)

    @precondition(lambda self: segment_files(self.path))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        file = data.draw(st.sampled_from(segment_files(self.path)))
        rows = self.store.remove(file.stem)
        assert rows[-1].key.hex() == file.stem and not file.exists()
        self.saved.clear()

    @precondition(lambda self: segment_files(self.path))
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        file = data.draw(st.sampled_from(segment_files(self.path)))
        flip(file, data.draw(st.integers(128, file.stat().st_size - 1)))
        self.saved.clear()
        how = data.draw(st.sampled_from(["quarantine", "repair"]))
        found = {finding.kind: finding.action for finding in self.store.verify(**{how: True}).findings}
        assert found["damaged"] == "quarantined" and not file.exists()
        assert found.get("orphan", "") == ("removed" if how == "repair" and "orphan" in found else "")

    @rule(n_bytes=st.integers(0, 40_000))
    def prune(self, n_bytes: int) -> None:
        before = self.store.stats().n_bytes
        removed = self.store.prune(n_bytes)
        after = self.store.stats()
        assert after.n_bytes == before - sum(row.file_bytes for row in removed)
        if removed:
            self.saved.clear()

    @rule(tokens=PROMPTS)
    def no_lossy_answer(self, tokens: list[int]) -> None:
        with self.store.snapshot(IDENTITY, tokens) as snapshot:
            assert snapshot.is_exact
            assert snapshot.miss is None or snapshot.miss.reason is not MissReason.UNREADABLE

    @invariant()
    def the_books_agree_with_the_files(self) -> None:
        self.n_done["steps"] += 1
        stats = self.store.stats()
        files = segment_files(self.path)
        assert stats.n_segments <= len(files)
        assert stats.n_bytes <= sum(file.stat().st_size for file in files)
        if self.is_tight:
            aside = sum(file.stat().st_size for file in self.path.glob("quarantine/*.seg"))
            assert sum(file.stat().st_size for file in files) + aside <= self.options["budget_bytes"]
        assert list((self.path / "tmp").iterdir()) == []

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)


class TestStoreMachine(StoreMachine.TestCase):  # type: ignore[misc]
    settings = settings(
        max_examples=N_EXAMPLES,
        stateful_step_count=N_STEPS,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )

    @classmethod
    def tearDownClass(cls) -> None:
        done = StoreMachine.n_done
        NATIVE_REPORTS.append(
            ("store: sequences of steps", f"{done['sequences']} sequences, {done['steps']} steps, checked after each")
        )
