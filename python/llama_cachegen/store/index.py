"""The index of a store: SQLite, a cache only. What it says is checked against the segment before any byte is used.

Deleting it loses nothing: it is made anew from the segments' headers. Rollback journal, so that readers write nothing,
not even on a read-only mount; if a reader cannot open it, it makes one in memory.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from .chain import HASH_BYTES
from .identity import CodecStamp, StoreIdentity
from .segment import SegmentPrefix

__all__ = ["INDEX_NAME", "SHORT_HASH_BYTES", "Index", "Root", "Row"]

INDEX_NAME = "index.sqlite"
_VERSION = 2
_APPLICATION_ID = 0x4C4B5331
_BUSY_S = 5.0
SHORT_HASH_BYTES = 8
"""Of each hash of a segment's blocks; a segment's own manifest has them whole, and is asked before it is used."""
_SCHEMA = f"""
CREATE TABLE roots(
    id INTEGER PRIMARY KEY, root BLOB UNIQUE, context BLOB, identity BLOB, codec BLOB, block_tokens INT);
CREATE TABLE segments(
    first BLOB, key BLOB, root_id INT, parent BLOB, parent_key BLOB, is_orphan INT, pos_begin INT, n_tokens INT,
    file_bytes INT, payload_bytes INT, divisible INT, created_ms INT, used_ms INT, is_pinned INT, is_tail INT,
    chain BLOB);
CREATE TABLE shards(name TEXT PRIMARY KEY, mtime_ns INT) WITHOUT ROWID;
CREATE TABLE others(name TEXT PRIMARY KEY, file_bytes INT, why TEXT) WITHOUT ROWID;
CREATE TABLE totals(n_segments INT, n_bytes INT);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
"""
# made after the rows of a new index, which is faster
_INDEXES = """
CREATE UNIQUE INDEX by_key ON segments(key);
CREATE INDEX by_first ON segments(first);
CREATE INDEX by_use ON segments(is_orphan DESC, used_ms, pos_begin DESC);
CREATE INDEX by_beginning ON segments(root_id, used_ms) WHERE pos_begin = 0;
CREATE INDEX by_pin ON segments(is_pinned) WHERE is_pinned;
CREATE INDEX by_tail ON segments(parent, n_tokens) WHERE is_tail;
UPDATE segments SET parent_key = parent, is_orphan = 0
    WHERE is_orphan AND EXISTS (SELECT 1 FROM segments AS before WHERE before.key = segments.parent);
CREATE INDEX by_parent_key ON segments(parent_key);
INSERT INTO totals SELECT count(*), coalesce(sum(file_bytes), 0) FROM segments;
CREATE TRIGGER added AFTER INSERT ON segments BEGIN
    UPDATE totals SET n_segments = n_segments + 1, n_bytes = n_bytes + new.file_bytes;END;
CREATE TRIGGER removed AFTER DELETE ON segments BEGIN
    UPDATE totals SET n_segments = n_segments - 1, n_bytes = n_bytes - old.file_bytes;END;
"""
_COLUMNS = (
    "key, first, root_id, parent, parent_key, is_orphan, pos_begin, n_tokens, file_bytes, payload_bytes, divisible, "
    "created_ms, used_ms, is_pinned, chain"
)
_INSERT = (
    "INSERT INTO segments(first, is_tail, key, root_id, parent, parent_key, is_orphan, pos_begin, n_tokens, "
    "file_bytes, payload_bytes, divisible, created_ms, used_ms, is_pinned, chain) "
    "VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)
_encoder = msgspec.json.Encoder(order="sorted")


def _values(
    prefix: SegmentPrefix, root_id: int, used_ms: int, is_pinned: bool, parent_key: bytes | None
) -> tuple[object, ...]:
    """What `_INSERT` takes. Without its parent's key a segment in the middle of a chain is an orphan, until `link`."""
    return (
        prefix.first,
        prefix.n_tokens < prefix.block_tokens,
        prefix.key,
        root_id,
        prefix.parent,
        parent_key,
        prefix.pos_begin > 0 and parent_key is None,
        prefix.pos_begin,
        prefix.n_tokens,
        prefix.plan.file_bytes,
        prefix.payload_bytes,
        prefix.divisible,
        prefix.created_ms,
        used_ms,
        is_pinned,
        short_hashes(prefix.chain),
    )


def short_hashes(chain: bytes) -> bytes:
    """The first bytes of each hash, as the index has them."""
    if len(chain) == HASH_BYTES:
        return chain[:SHORT_HASH_BYTES]
    words = memoryview(chain).cast("Q")  # one is a short hash
    return words[:: HASH_BYTES // SHORT_HASH_BYTES].tobytes()


class Row(NamedTuple):
    """A segment as the index has it.

    Attributes:
        key: hash of everything up to its end; its name.
        first: hash of its first block.
        parent: hash of everything before it.
        parent_key: the segment that holds the block before it; None at the beginning of a chain, and for an orphan.
        is_orphan: no segment of the store holds the block before it, so that no lookup comes here.
        chain: the first bytes of the hashes of its blocks, SHORT_HASH_BYTES of each.
    """

    key: bytes
    first: bytes
    root_id: int
    parent: bytes
    parent_key: bytes | None
    is_orphan: bool
    pos_begin: int
    n_tokens: int
    file_bytes: int
    payload_bytes: int
    divisible: bool
    created_ms: int
    used_ms: int
    is_pinned: bool
    chain: bytes


class Root(NamedTuple):
    """Identity and codec that chains begin with."""

    id: int
    root: bytes
    context: bytes
    identity: StoreIdentity
    codec: CodecStamp
    block_tokens: int


_row = Row._make


class Index:
    """One SQLite database. Raises sqlite3.Error wherever SQLite does; a caller then makes it anew."""

    def __init__(self, connection: sqlite3.Connection, *, in_memory: bool) -> None:
        self._db = connection
        self.in_memory = in_memory
        self._roots: dict[bytes, Root] | None = None
        self._n_root_changes = -1

    @classmethod
    def create(cls, path: str) -> Index:
        """A new one in an existing empty file, or in memory with path ":memory:"; to be filled by `fill`."""
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = OFF")
            db.execute("PRAGMA synchronous = OFF")
            db.execute("PRAGMA cache_size = -65536")
            db.execute("PRAGMA temp_store = MEMORY")
            db.executescript(_SCHEMA)
        except BaseException:
            db.close()
            raise
        return cls(db, in_memory=path == ":memory:")

    @classmethod
    def open(cls, path: str, *, read_only: bool) -> Index:
        """An existing one.

        Raises:
            sqlite3.Error, OSError: there is none, or it is damaged or of another version.
        """
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise sqlite3.DatabaseError(f"{path} is no regular file")
        from urllib.parse import quote

        uri = f"file:{quote(path)}?mode={'ro' if read_only else 'rw'}"
        db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
        try:
            db.execute("PRAGMA trusted_schema = OFF")
            if not read_only:
                db.execute("PRAGMA journal_mode = TRUNCATE")
                db.execute("PRAGMA synchronous = NORMAL")
            found = (db.execute("PRAGMA application_id").fetchone()[0], db.execute("PRAGMA user_version").fetchone()[0])
            if found != (_APPLICATION_ID, _VERSION):
                raise sqlite3.DatabaseError(f"{path} is no index of this version")
            db.execute("SELECT n_segments, n_bytes FROM totals").fetchone()[0]
        except BaseException as error:
            db.close()
            if isinstance(error, TypeError):
                raise sqlite3.DatabaseError(f"{path} has no totals") from None
            raise
        return cls(db, in_memory=False)

    def copy(self) -> Index:
        """The same in memory."""
        db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            self._db.backup(db)
        except BaseException:
            db.close()
            raise
        return Index(db, in_memory=True)

    def close(self) -> None:
        """Close it."""
        self._db.close()

    def begin(self) -> None:
        """Begin a change that comes true as a whole."""
        self._db.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Make it true."""
        self._db.execute("COMMIT")

    def rollback(self) -> None:
        """Forget it."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._roots = None

    # roots

    def roots(self) -> dict[bytes, Root]:
        """Every root, by its hash."""
        n_changes = self._db.execute("PRAGMA data_version").fetchone()[0]
        if self._roots is None or n_changes != self._n_root_changes:
            self._n_root_changes = n_changes
            self._roots = {}
            for id_, root, context, identity, codec, block_tokens in self._db.execute(
                "SELECT id, root, context, identity, codec, block_tokens FROM roots"
            ):
                try:
                    self._roots[root] = Root(
                        id_,
                        root,
                        context,
                        msgspec.json.decode(identity, type=StoreIdentity),
                        msgspec.json.decode(codec, type=CodecStamp),
                        block_tokens,
                    )
                except (msgspec.DecodeError, ValueError, TypeError) as error:
                    raise sqlite3.DatabaseError(f"a root of the index cannot be read: {error}") from None
        return self._roots

    def _root_id(self, prefix: SegmentPrefix) -> int:
        known = self.roots().get(prefix.root)
        if known is not None:
            return known.id
        identity, codec = _encoder.encode(prefix.identity), _encoder.encode(prefix.codec)
        self._db.execute(
            "INSERT INTO roots(root, context, identity, codec, block_tokens) VALUES(?,?,?,?,?)",
            (prefix.root, prefix.context, identity, codec, prefix.block_tokens),
        )
        self._roots = None
        return self.roots()[prefix.root].id

    # segments

    def add(
        self, prefix: SegmentPrefix, *, used_ms: int, is_pinned: bool = False, parent_key: bytes | None = None
    ) -> None:
        """Add a segment, taking the place of one of the same key.

        Args:
            prefix: its header and manifest.
            used_ms: when it was last used.
            is_pinned: never evicted.
            parent_key: the segment that holds the block before it; see `link` if it is not known.
        """
        self._db.execute("DELETE FROM segments WHERE key = ?", (prefix.key,))
        self._db.execute(_INSERT, _values(prefix, self._root_id(prefix), used_ms, is_pinned, parent_key))
        if self._db.execute("SELECT 1 FROM segments WHERE is_orphan LIMIT 1").fetchone():
            chain, key = prefix.chain, prefix.key
            self._db.executemany(
                "UPDATE segments SET parent_key = ?, is_orphan = 0 WHERE is_orphan AND parent = ? AND key != ?",
                [(key, chain[i : i + HASH_BYTES], key) for i in range(0, len(chain), HASH_BYTES)],
            )

    def remove(self, key: bytes) -> None:
        """Forget a segment. What came after it is an orphan now."""
        self._db.execute("DELETE FROM segments WHERE key = ?", (key,))
        self._db.execute("UPDATE segments SET parent_key = NULL, is_orphan = 1 WHERE parent_key = ?", (key,))

    def link(self) -> None:
        """Find for every orphan the segment that holds the block before it."""
        wanted: dict[bytes, list[bytes]] = {}
        for key, parent in self._db.execute("SELECT key, parent FROM segments WHERE is_orphan"):
            wanted.setdefault(parent[:SHORT_HASH_BYTES], []).append(key)
        if not wanted:
            return
        found = []
        for key, chain in self._db.execute("SELECT key, chain FROM segments"):
            for begin in range(0, len(chain), SHORT_HASH_BYTES):
                for orphan in wanted.get(chain[begin : begin + SHORT_HASH_BYTES], ()):
                    if orphan != key:
                        found.append((key, orphan))
        self._db.executemany("UPDATE segments SET parent_key = ?, is_orphan = 0 WHERE key = ?", found)

    def get(self, key: bytes) -> Row | None:
        """The segment of a key."""
        found = self._db.execute(f"SELECT {_COLUMNS} FROM segments WHERE key = ?", (key,)).fetchone()
        return None if found is None else _row(found)

    def starting_with(self, firsts: Sequence[bytes]) -> list[Row]:
        """The segments whose first block has one of these hashes, in no order."""
        marks = ",".join("?" * len(firsts))
        return list(map(_row, self._db.execute(f"SELECT {_COLUMNS} FROM segments WHERE first IN ({marks})", firsts)))

    def tail_lengths(self, parent: bytes, most: int) -> list[int]:
        """Tokens of the segments after a hash that have less than one block, up to most; the longest first."""
        return [
            n
            for (n,) in self._db.execute(
                "SELECT DISTINCT n_tokens FROM segments WHERE is_tail AND parent = ? AND n_tokens <= ? "
                "ORDER BY n_tokens DESC",
                (parent, most),
            )
        ]

    def children_of(self, key: bytes) -> list[bytes]:
        """Keys of the segments right after one."""
        return [one for (one,) in self._db.execute("SELECT key FROM segments WHERE parent_key = ?", (key,))]

    def descendants_of(self, key: bytes) -> list[Row]:
        """The segments that continue one, and those that continue them; each after what it continues."""
        found: list[Row] = []
        todo = [key]
        for one in todo:
            for child in self.children_of(one):
                row = self.get(child)
                if row is not None:
                    todo.append(child)
                    found.append(row)
        return found

    def rows(self) -> Iterator[Row]:
        """Every segment, the one used longest ago first."""
        for one in self._db.execute(f"SELECT {_COLUMNS} FROM segments ORDER BY used_ms, pos_begin DESC"):
            yield _row(one)

    def beginnings(self, root_id: int, most: int) -> list[Row]:
        """Segments at position 0 of a root, the one used last first."""
        return [
            _row(one)
            for one in self._db.execute(
                f"SELECT {_COLUMNS} FROM segments WHERE root_id = ? AND pos_begin = 0 ORDER BY used_ms DESC LIMIT ?",
                (root_id, most),
            )
        ]

    def victims(self) -> Iterator[Row]:
        """Segments that nothing comes after and that are not pinned: orphans first, then by last use."""
        for one in self._db.execute(
            f"SELECT {_COLUMNS} FROM segments AS s WHERE NOT is_pinned AND NOT EXISTS "
            "(SELECT 1 FROM segments WHERE parent_key = s.key) ORDER BY is_orphan DESC, used_ms, pos_begin DESC"
        ):
            yield _row(one)

    def used(self, keys: Iterable[tuple[int, bytes]]) -> None:
        """Note (used_ms, key) of segments that were read."""
        self._db.executemany("UPDATE segments SET used_ms = max(used_ms, ?) WHERE key = ?", keys)

    def pin(self, key: bytes, is_pinned: bool) -> None:
        """Note that a segment is pinned, or no longer."""
        self._db.execute("UPDATE segments SET is_pinned = ? WHERE key = ?", (is_pinned, key))

    def pinned(self) -> set[bytes]:
        """Keys of the segments that are pinned."""
        return {key for (key,) in self._db.execute("SELECT key FROM segments WHERE is_pinned")}

    def last_used_ms(self) -> int:
        """The latest use, 0 if there is none."""
        latest = "(SELECT used_ms FROM segments WHERE is_orphan = {} ORDER BY used_ms DESC LIMIT 1)"
        found = self._db.execute(f"SELECT {latest.format(0)}, {latest.format(1)}").fetchone()
        return max(int(value or 0) for value in found)

    def totals(self) -> tuple[int, int]:
        """Segments, and bytes of their files together with those of files that are kept but not read."""
        n, n_bytes = self._db.execute("SELECT n_segments, n_bytes FROM totals").fetchone()
        (others,) = self._db.execute("SELECT coalesce(sum(file_bytes), 0) FROM others").fetchone()
        return int(n), int(n_bytes) + int(others)

    def never_read(self) -> tuple[int, int]:
        """Segments that were not used since they were saved, and their bytes."""
        n, n_bytes = self._db.execute(
            "SELECT count(*), coalesce(sum(file_bytes), 0) FROM segments WHERE used_ms <= created_ms"
        ).fetchone()
        return int(n), int(n_bytes)

    def is_sound(self) -> bool:
        """Whether SQLite finds nothing wrong with the database."""
        return [one for (one,) in self._db.execute("PRAGMA quick_check(1)")] == ["ok"]

    # directories

    def shards(self) -> dict[str, int]:
        """Modification times of the directories of segments, as of when they were last read."""
        return dict(self._db.execute("SELECT name, mtime_ns FROM shards"))

    def set_shard(self, name: str, mtime_ns: int) -> None:
        """Note that the index is as a directory was at that time; 0: it has to be read again."""
        self._db.execute("INSERT OR REPLACE INTO shards VALUES(?, ?)", (name, mtime_ns))

    def keys_of_shard(self, low: bytes, high: bytes) -> set[bytes]:
        """Keys from low up to and without high; an empty high is no bound."""
        if high:
            rows = self._db.execute("SELECT key FROM segments WHERE key >= ? AND key < ?", (low, high))
        else:
            rows = self._db.execute("SELECT key FROM segments WHERE key >= ?", (low,))
        return {key for (key,) in rows}

    def others(self) -> dict[str, tuple[int, str]]:
        """Files that are kept and not read: size and why."""
        return {name: (n, why) for name, n, why in self._db.execute("SELECT name, file_bytes, why FROM others")}

    def set_other(self, name: str, file_bytes: int, why: str) -> None:
        """Note a file that is kept and not read."""
        self._db.execute("INSERT OR REPLACE INTO others VALUES(?, ?, ?)", (name, file_bytes, why))

    def forget_other(self, name: str) -> None:
        """It is gone."""
        self._db.execute("DELETE FROM others WHERE name = ?", (name,))

    # bulk

    def fill(self, found: Iterable[tuple[SegmentPrefix, int, bool]]) -> None:
        """Make a new index complete with (prefix, used_ms, is_pinned) of every segment."""
        db = self._db

        def rows() -> Iterator[tuple[object, ...]]:
            roots: dict[bytes, int] = {}
            for prefix, used_ms, is_pinned in found:
                root_id = roots.get(prefix.root)
                if root_id is None:
                    root_id = roots[prefix.root] = self._root_id(prefix)
                yield _values(prefix, root_id, used_ms, is_pinned, None)

        db.executemany(_INSERT, rows())
        for statement in _INDEXES.split(";\n"):
            if statement.strip():
                db.execute(statement)
        self.link()
