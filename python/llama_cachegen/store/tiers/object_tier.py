"""Segments in an object store: S3 and what speaks it, Google's, Azure's, by `obstore`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ...errors import TierDamagedError, TierFullError, TierMissingError, TierSetupError, TierUnavailableError
from .names import SegmentName

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["ObjectTier"]

_NO_ROOM = re.compile(r"\b(507|InsufficientStorage|QuotaExceeded|XMinioStorageFull|EntityTooLarge)\b")
_LISTED = 1000


class ObjectTier:
    """A tier of objects. The first to put one keeps its name: the store is asked to write only what is not there.

    Args:
        store: of obstore, for example `obstore.store.S3Store(...)`. Its own retries should be off.
        prefix: before every name, such as "pages/".
        title: for people; the prefix unless given.
    """

    is_near = False

    def __init__(self, store: ObjectStore, *, prefix: str = "", title: str = "") -> None:
        try:
            import obstore
        except ImportError:
            raise TierSetupError("object stores need the package obstore: pip install 'llama-cachegen[s3]'") from None
        self._obstore = obstore
        self._store = store
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self.title = title or f"objects/{self._prefix}"

    @classmethod
    def from_url(cls, url: str, *, timeout_s: float = 2.0, **config: Any) -> ObjectTier:
        """A tier at "s3://BUCKET/PREFIX", "gs://...", "az://..." or "file:///...".

        Args:
            url: see above.
            timeout_s: of one request; a guard's deadline may be shorter.
            config: what obstore takes, such as endpoint, access_key_id, secret_access_key, region; else the
                environment says it (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, ...).

        Raises:
            TierSetupError: the package is missing, or the address or a setting is none.
        """
        try:
            from obstore.store import LocalStore, from_url
        except ImportError:
            raise TierSetupError("object stores need the package obstore: pip install 'llama-cachegen[s3]'") from None
        try:
            if url.startswith("file://"):
                store: Any = LocalStore(url.removeprefix("file://"), mkdir=True)
            else:
                timeout = timedelta(seconds=timeout_s)
                store = from_url(
                    url,
                    client_options={"timeout": timeout, "connect_timeout": timeout, "allow_http": True},
                    retry_config={"max_retries": 0, "retry_timeout": timeout},
                    **config,
                )
        except Exception as error:
            raise TierSetupError(f"{url}: {_first_line(error)}") from None
        return cls(store, title=url)

    def _path(self, name: SegmentName) -> str:
        return self._prefix + name.path

    def _translated(self, error: Exception, what: str) -> Exception:
        text = _first_line(error)
        if isinstance(error, FileNotFoundError):
            # a bucket that is not there has no segments, and to whom it matters the put says so
            return TierMissingError(f"{self.title} has no {what}: {text}")
        if _NO_ROOM.search(str(error)):
            return TierFullError(f"{self.title}: {what}: {text}")
        return TierUnavailableError(f"{what}: {text}")

    def head(self, name: SegmentName, n_bytes: int, *, timeout_s: float) -> bytes:
        """See `Tier`."""
        try:
            found = self._obstore.get(self._store, self._path(name), options={"range": (0, n_bytes)})
            return bytes(memoryview(found.bytes()))[:n_bytes]
        except Exception as error:
            raise self._translated(error, name.path) from error

    def get(self, name: SegmentName, max_bytes: int, *, timeout_s: float) -> bytes:
        """See `Tier`."""
        try:
            found = self._obstore.get(self._store, self._path(name))
            size = found.meta["size"]
            if size <= max_bytes:
                data = bytes(memoryview(found.bytes()))
        except Exception as error:
            raise self._translated(error, name.path) from error
        if size > max_bytes:
            raise TierDamagedError(f"{self.title}: {name.path} has {size} bytes, more than {max_bytes}")
        if len(data) != size:
            raise TierUnavailableError(f"{name.path}: {len(data)} of {size} bytes came")
        return data

    def put(self, name: SegmentName, data: bytes, *, replace: bool, timeout_s: float) -> bool:
        """See `Tier`."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "overwrite" if replace else "create"
        try:
            self._obstore.put(self._store, self._path(name), data, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        except FileNotFoundError as error:
            raise TierUnavailableError(f"{self.title} takes nothing: {_first_line(error)}") from error
        except Exception as error:
            raise self._translated(error, name.path) from error
        return True

    def contains(self, names: Sequence[SegmentName], *, timeout_s: float) -> set[SegmentName]:
        """See `Tier`."""
        found = set()
        for name in names:
            try:
                self._obstore.head(self._store, self._path(name))
                found.add(name)
            except FileNotFoundError:
                pass
            except Exception as error:
                raise self._translated(error, name.path) from error
        return found

    def _listed(self, prefix: str) -> Iterator[str]:
        """The paths below a prefix, without the tier's own."""
        for page in self._obstore.list(self._store, self._prefix + prefix, chunk_size=_LISTED):
            for meta in page:
                yield meta["path"].removeprefix(self._prefix)

    def list_group(self, group: str, limit: int, *, timeout_s: float) -> list[SegmentName]:
        """See `Tier`."""
        start = SegmentName(group, 1, b"").path.rpartition("/")[0] + "/"
        try:
            paths = list(itertools.islice(self._listed(start), limit))
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._translated(error, start) from error
        names = (SegmentName.of_entry(group, path.removeprefix(start)) for path in paths)
        return [name for name in names if name is not None]

    def delete(self, name: SegmentName, *, timeout_s: float) -> None:
        """See `Tier`."""
        try:
            self._obstore.delete(self._store, self._path(name))
        except FileNotFoundError:
            pass
        except Exception as error:
            raise self._translated(error, name.path) from error

    def close(self) -> None:
        """See `Tier`."""


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
