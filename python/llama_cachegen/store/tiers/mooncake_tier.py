"""Segments in Mooncake Store: memory that several hosts lend each other. Replicas and eviction are left to it.

Mooncake has no listing, and an object's first writer wins. So the names of a group lie in up to 64 small objects
"PREFIX g/GROUP/I", each written once; a slot whose segment is gone is taken again.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from ...errors import TierDamagedError, TierFullError, TierMissingError, TierSetupError, TierUnavailableError
from .mooncake_process import MooncakeProcess
from .names import SegmentName

__all__ = ["MooncakeTier"]

_OK, _NOT_FOUND = 0, -704
_NO_ROOM = {-200: "no host has room for it", -600: "larger than the buffer"}
_N_SLOTS = 64


class MooncakeTier:
    """A tier of a Mooncake cluster. Hosts lend memory to it by Mooncake's own `mooncake_client`; this lends none.

    Args:
        master: "HOST:PORT" of mooncake_master.
        local_hostname: this host's name or address, as the others reach it.
        metadata: "P2PHANDSHAKE", or the address of a metadata server.
        protocol: "tcp" or "rdma".
        devices: of RDMA, such as "mlx5_0".
        buffer_bytes: for transfers; a segment has to fit into it.
        n_replicas: of each segment.
        prefix: before every name.

    Raises:
        TierSetupError: the package is missing.
    """

    is_near = False

    def __init__(
        self,
        master: str,
        *,
        local_hostname: str = "127.0.0.1",
        metadata: str = "P2PHANDSHAKE",
        protocol: str = "tcp",
        devices: str = "",
        buffer_bytes: int = 1 << 28,
        n_replicas: int = 1,
        prefix: str = "lcg/",
    ) -> None:
        if importlib.util.find_spec("mooncake") is None:
            raise TierSetupError(
                "Mooncake needs its package: pip install 'llama-cachegen[mooncake]', and the system's libibverbs, "
                "librdmacm and libnuma"
            )
        self._n_replicas = n_replicas
        self._prefix = prefix
        self.title = f"mooncake://{master}"
        self._process = MooncakeProcess(
            (local_hostname, metadata, 0, buffer_bytes, protocol, devices, master), self.title
        )

    def _call(self, timeout_s: float, operation: str, *arguments: Any) -> Any:
        return self._process.call(operation, *arguments, timeout_s=timeout_s)

    def _name(self, name: SegmentName) -> str:
        return self._prefix + name.path

    def _slots(self, group: str) -> list[str]:
        return [f"{self._prefix}g/{group}/{i}" for i in range(_N_SLOTS)]

    def _size(self, name: SegmentName, timeout_s: float) -> int:
        size = int(self._call(timeout_s, "get_size", self._name(name)))
        if size == _NOT_FOUND:
            raise TierMissingError(f"{self.title} has no {name.path}")
        if size < 0:
            raise TierUnavailableError(f"{name.path}: status {size}")
        return size

    def head(self, name: SegmentName, n_bytes: int, *, timeout_s: float) -> bytes:
        """See `Tier`."""
        n_bytes = min(n_bytes, self._size(name, timeout_s))
        data: bytes = self._call(timeout_s, "head", self._name(name), n_bytes)
        if len(data) != n_bytes:
            raise TierUnavailableError(f"{name.path}: {len(data)} of {n_bytes} bytes came")
        return data

    def get(self, name: SegmentName, max_bytes: int, *, timeout_s: float) -> bytes:
        """See `Tier`."""
        size = self._size(name, timeout_s)
        if size > max_bytes:
            raise TierDamagedError(f"{self.title}: {name.path} has {size} bytes, more than {max_bytes}")
        data: bytes = self._call(timeout_s, "get", self._name(name))
        if len(data) != size:  # nothing at all if it failed or was evicted meanwhile
            raise TierUnavailableError(f"{name.path}: {len(data)} of {size} bytes came")
        return data

    def put(self, name: SegmentName, data: bytes, *, replace: bool, timeout_s: float) -> bool:
        """See `Tier`."""
        is_ours = True
        if replace:
            self._check(self._call(timeout_s, "upsert", self._name(name), data, self._n_replicas), name.path)
        elif self._is_there(name, timeout_s):
            is_ours = False
        else:
            # the status is the same whoever was first, so the bytes have to tell
            self._check(self._call(timeout_s, "put", self._name(name), data, self._n_replicas), name.path)
            is_ours = self._call(timeout_s, "get", self._name(name)) == data
        self._link(name, timeout_s)
        return is_ours

    def _check(self, status: int, what: str) -> None:
        if status in _NO_ROOM:
            raise TierFullError(f"{self.title}: {what}: {_NO_ROOM[status]}")
        if status != _OK:
            raise TierUnavailableError(f"{what}: status {status}")

    def _is_there(self, name: SegmentName, timeout_s: float) -> bool:
        try:
            self._size(name, timeout_s)
        except TierMissingError:
            return False
        return True

    def _link(self, name: SegmentName, timeout_s: float) -> None:
        """Write the name into a free slot of its group, or into one whose segment is gone."""
        slots = self._slots(name.group)
        entry = name.entry.encode()
        linked = self._entries(name.group, timeout_s)
        if entry in linked:
            return
        for slot, found in zip(slots, linked, strict=True):
            if not found:
                self._check(self._call(timeout_s, "put", slot, entry, self._n_replicas), slot)
                if self._call(timeout_s, "get", slot) == entry:
                    return
        for slot, found in zip(slots, linked, strict=True):
            other = SegmentName.of_entry(name.group, found.decode("ascii", "replace"))
            if found and (other is None or not self._is_there(other, timeout_s)):
                self._check(self._call(timeout_s, "upsert", slot, entry, self._n_replicas), slot)
                return
        raise TierFullError(f"{self.title}: {_N_SLOTS} segments already begin like {name.path}")

    def contains(self, names: Sequence[SegmentName], *, timeout_s: float) -> set[SegmentName]:
        """See `Tier`."""
        if not names:
            return set()
        is_there = self._exist([self._name(name) for name in names], timeout_s)
        there = [name for name, one in zip(names, is_there, strict=True) if one]
        # one that is in no slot is found by nobody
        groups = {group: set(self._linked(group, timeout_s)) for group in {name.group for name in there}}
        return {name for name in there if name in groups[name.group]}

    def _exist(self, keys: list[str], timeout_s: float) -> list[bool]:
        statuses: list[int] = self._call(timeout_s, "batch_is_exist", keys)
        if any(status < 0 for status in statuses):
            raise TierUnavailableError(f"status {min(statuses)}")
        return [status == 1 for status in statuses]

    def _entries(self, group: str, timeout_s: float) -> list[bytes]:
        """What is in each slot, b"" for nothing. Asked for twice, as a failure to get one looks like nothing too."""
        slots = self._slots(group)
        is_there = self._exist(slots, timeout_s)
        taken = [slot for slot, one in zip(slots, is_there, strict=True) if one]
        if not taken:
            return [b""] * _N_SLOTS
        entries: list[bytes] = self._call(timeout_s, "get_batch", taken)
        if not all(entries):
            raise TierUnavailableError(f"{entries.count(b'')} of {len(taken)} names of {group} did not come")
        by_slot = dict(zip(taken, entries, strict=True))
        return [by_slot.get(slot, b"") for slot in slots]

    def _linked(self, group: str, timeout_s: float) -> list[SegmentName]:
        entries = self._entries(group, timeout_s)
        names = (SegmentName.of_entry(group, entry.decode("ascii", "replace")) for entry in entries if entry)
        return [name for name in dict.fromkeys(names) if name is not None]

    def list_group(self, group: str, limit: int, *, timeout_s: float) -> list[SegmentName]:
        """See `Tier`."""
        return self._linked(group, timeout_s)[:limit]

    def delete(self, name: SegmentName, *, timeout_s: float) -> None:
        """See `Tier`."""
        status = self._call(timeout_s, "remove", self._name(name), True)
        if status not in (_OK, _NOT_FOUND):
            raise TierUnavailableError(f"{name.path}: status {status}")

    def close(self) -> None:
        """See `Tier`."""
        self._process.close()
