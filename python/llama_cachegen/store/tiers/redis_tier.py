"""Segments in Redis or Valkey: in chunks, behind a header that is written last.

Keys, PREFIX being "lcg:" unless given: `PREFIX PATH` is the header (JSON: total, chunk_bytes, upload),
`PREFIX c:UPLOAD:I` are the chunks of one upload, `PREFIX g:GROUP` is the set of names of a group. Chunks of an upload
that ends early expire.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from ...errors import TierDamagedError, TierFullError, TierMissingError, TierSetupError, TierUnavailableError
from .names import SegmentName

__all__ = ["RedisTier"]

_UPLOAD_S = 600
"""Chunks without a header are gone after so many seconds."""
_MAX_CHUNKS = 1 << 20
_UPLOAD = re.compile(r"[0-9a-f]{32}\Z")


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    total: int
    chunk_bytes: int
    upload: str

    @property
    def n_chunks(self) -> int:
        return -(-self.total // self.chunk_bytes)


class RedisTier:
    """A tier on one server, or one with replicas; no cluster, as a header and its chunks change together.

    Args:
        client: redis.Redis or valkey.Valkey, with timeouts, without retries, answering in bytes.
        prefix: before every key.
        chunk_bytes: of a value; a server takes 512 MiB at most, and serves no one else meanwhile.
        ttl_s: seconds after which a segment is gone; None: the server's memory policy decides.
        title: for people.
    """

    is_near = False

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = "lcg:",
        chunk_bytes: int = 1 << 22,
        ttl_s: int | None = None,
        title: str = "redis",
    ) -> None:
        try:
            import redis
        except ImportError:
            raise TierSetupError("Redis needs the package redis: pip install 'llama-cachegen[redis]'") from None
        if chunk_bytes < 1 or (ttl_s is not None and ttl_s < 1):
            raise ValueError("chunk_bytes and ttl_s have to be 1 or more")
        self._errors: tuple[type[Exception], ...] = (redis.RedisError, OSError)
        self._client = client
        self._prefix = prefix
        self._chunk_bytes = chunk_bytes
        self._ttl_s = ttl_s
        self.title = title

    @classmethod
    def from_url(cls, url: str, *, timeout_s: float = 2.0, **options: Any) -> RedisTier:
        """A tier at "redis://HOST:PORT/DB", "rediss://..." or "unix://...".

        Args:
            url: see above.
            timeout_s: of connecting, and of each answer; a guard's deadline may be shorter.
            options: as of the class.

        Raises:
            TierSetupError: the package is missing, or the address is none.
        """
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError:
            raise TierSetupError("Redis needs the package redis: pip install 'llama-cachegen[redis]'") from None
        try:
            client = redis.Redis.from_url(
                url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
            )
        except ValueError as error:
            raise TierSetupError(f"{url}: {error}") from None
        place = url.rpartition("@")[2] if "@" in url else url.partition("://")[2]
        return cls(client, **{"title": f"{url.partition('://')[0]}://{place}", **options})

    # keys

    def _header_key(self, name: SegmentName) -> str:
        return self._prefix + name.path

    def _group_key(self, group: str) -> str:
        return f"{self._prefix}g:{group}"

    def _chunk_keys(self, header: _Header) -> list[str]:
        return [f"{self._prefix}c:{header.upload}:{i}" for i in range(header.n_chunks)]

    def _translated(self, error: Exception) -> Exception:
        text = str(error) or type(error).__name__
        if "OOM" in text or "maxmemory" in text:
            return TierFullError(f"{self.title}: {text}")
        return TierUnavailableError(text)

    # reading

    def _header(self, name: SegmentName) -> _Header:
        data = self._client.get(self._header_key(name))
        if data is None:
            raise TierMissingError(f"{self.title} has no {name.path}")
        try:
            header = msgspec.json.decode(data, type=_Header, strict=True)
            sizes_fit = header.total >= 1 and header.chunk_bytes >= 1 and header.n_chunks <= _MAX_CHUNKS
            if not sizes_fit or not _UPLOAD.match(header.upload):
                raise ValueError("a size or a name is not possible")
        except (msgspec.DecodeError, ValueError) as error:
            raise TierDamagedError(f"{self.title}: the header of {name.path} cannot be read: {error}") from None
        return header

    def _read(self, name: SegmentName, n_bytes: int | None, max_bytes: int) -> bytes:
        try:
            header = self._header(name)
            if n_bytes is None and header.total > max_bytes:
                raise TierDamagedError(f"{self.title}: {name.path} has {header.total} bytes, more than {max_bytes}")
            wanted = header.total if n_bytes is None else min(n_bytes, header.total)
            chunks: list[bytes] = []
            for i, key in enumerate(self._chunk_keys(header)):
                begin = i * header.chunk_bytes
                if begin >= wanted:
                    break
                size = min(header.chunk_bytes, header.total - begin)
                if begin + size > wanted:
                    size = wanted - begin
                    chunk = self._client.getrange(key, 0, size - 1)
                else:
                    chunk = self._client.get(key)
                if not chunk:
                    # expired or evicted before the header: nothing can be made of the rest
                    self._forget(name, header)
                    raise TierMissingError(f"{self.title} no longer has chunk {i} of {name.path}")
                if len(chunk) != size:
                    raise TierDamagedError(f"{self.title}: chunk {i} of {name.path} has {len(chunk)} bytes, not {size}")
                chunks.append(chunk)
        except self._errors as error:
            raise self._translated(error) from error
        return b"".join(chunks)

    def head(self, name: SegmentName, n_bytes: int, *, timeout_s: float) -> bytes:
        """See `Tier`."""
        return self._read(name, n_bytes, 0)

    def get(self, name: SegmentName, max_bytes: int, *, timeout_s: float) -> bytes:
        """See `Tier`."""
        return self._read(name, None, max_bytes)

    def contains(self, names: Sequence[SegmentName], *, timeout_s: float) -> set[SegmentName]:
        """See `Tier`."""
        if not names:
            return set()
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.exists(self._header_key(name))
                    pipe.sismember(self._group_key(name.group), name.entry)  # otherwise nobody finds it
                answers = pipe.execute()
                return {name for name, *both in zip(names, answers[::2], answers[1::2], strict=True) if all(both)}
        except self._errors as error:
            raise self._translated(error) from error

    def list_group(self, group: str, limit: int, *, timeout_s: float) -> list[SegmentName]:
        """See `Tier`."""
        try:
            entries = self._client.srandmember(self._group_key(group), limit)
        except self._errors as error:
            raise self._translated(error) from error
        names = (SegmentName.of_entry(group, entry.decode("ascii", "replace")) for entry in entries or ())
        return sorted(name for name in names if name is not None)

    # writing

    def put(self, name: SegmentName, data: bytes, *, replace: bool, timeout_s: float) -> bool:
        """See `Tier`."""
        header = _Header(len(data), self._chunk_bytes, secrets.token_hex(16))
        keys = self._chunk_keys(header)
        view = memoryview(data)
        try:
            if not replace and self._client.exists(self._header_key(name)):
                self._client.sadd(self._group_key(name.group), name.entry)
                return False
            try:
                for i, key in enumerate(keys):
                    self._client.set(key, bytes(view[i * self._chunk_bytes :][: self._chunk_bytes]), ex=_UPLOAD_S)
                is_ours = self._commit(name, header, keys, replace)
            except BaseException:
                self._drop(keys)
                raise
            if not is_ours:
                self._drop(keys)
            return is_ours
        except self._errors as error:
            raise self._translated(error) from error

    def _commit(self, name: SegmentName, header: _Header, keys: list[str], replace: bool) -> bool:
        """Make an upload visible, all of it at once. Returns whether it is; not, if the name was taken."""
        import redis

        header_key, group_key = self._header_key(name), self._group_key(name.group)
        with self._client.pipeline(transaction=True) as pipe:
            pipe.watch(header_key)
            if not replace and pipe.exists(header_key):
                return False
            pipe.multi()
            for key in keys:
                if self._ttl_s is None:
                    pipe.persist(key)
                else:
                    pipe.expire(key, self._ttl_s)
            pipe.set(header_key, msgspec.json.encode(header), ex=self._ttl_s)
            pipe.sadd(group_key, name.entry)
            if self._ttl_s is not None:
                pipe.expire(group_key, self._ttl_s)
            try:
                pipe.execute()
            except redis.WatchError:
                return False
        return True

    def _drop(self, keys: Sequence[str]) -> None:
        """Remove chunks that nothing refers to. If that fails they expire."""
        with contextlib.suppress(*self._errors):
            if keys:
                self._client.unlink(*keys)

    def _forget(self, name: SegmentName, header: _Header) -> None:
        """Remove a header whose chunks are not all there, unless another took its place meanwhile."""
        with contextlib.suppress(*self._errors), self._client.pipeline(transaction=True) as pipe:
            pipe.watch(self._header_key(name))
            if pipe.get(self._header_key(name)) == msgspec.json.encode(header):
                pipe.multi()
                pipe.unlink(self._header_key(name), *self._chunk_keys(header)[:1000])
                pipe.srem(self._group_key(name.group), name.entry)
                pipe.execute()

    def delete(self, name: SegmentName, *, timeout_s: float) -> None:
        """See `Tier`."""
        try:
            keys: list[str] = []
            with contextlib.suppress(TierMissingError, TierDamagedError):
                keys = self._chunk_keys(self._header(name))
            self._client.unlink(self._header_key(name))
            self._client.srem(self._group_key(name.group), name.entry)
            self._drop(keys)
        except self._errors as error:
            raise self._translated(error) from error

    def close(self) -> None:
        """See `Tier`."""
        self._client.close()
