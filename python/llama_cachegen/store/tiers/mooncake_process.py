"""A process of our own that talks to Mooncake, and can be ended when it does not answer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from ...errors import TierTimeoutError, TierUnavailableError

__all__ = ["MooncakeProcess"]

_OK = 0


class MooncakeProcess:
    """Calls, one at a time. The process starts, and joins the cluster, with the first call and after each timeout.

    Args:
        settings: what `MooncakeDistributedStore.setup` takes.
        title: for messages.
    """

    def __init__(self, settings: tuple[Any, ...], title: str) -> None:
        self._settings = settings
        self._title = title
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._calls: Connection | None = None

    def call(self, operation: str, *arguments: Any, timeout_s: float) -> Any:
        """The answer to one call.

        Raises:
            TierTimeoutError: there is none in time; the process was ended.
            TierUnavailableError: it failed, or the cluster cannot be joined.
        """
        deadline = time.monotonic() + timeout_s
        if not self._turn.acquire(timeout=max(0.0, timeout_s)):
            raise TierTimeoutError(f"{self._title}: earlier calls have no answer yet")
        try:
            if self._calls is None:
                self._start()
                status = self._exchange("setup", self._settings, deadline)
                if status != _OK:
                    self._end()
                    raise TierUnavailableError(f"the cluster cannot be joined: status {status}")
            return self._exchange(operation, arguments, deadline)
        finally:
            self._turn.release()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            worker = str(Path(__file__).with_name("mooncake_worker.py"))
            self._process = subprocess.Popen(
                [sys.executable, worker, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for whoever called
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
            self._calls = Connection(ours.detach())

    def _exchange(self, operation: str, arguments: Any, deadline: float) -> Any:
        assert self._calls is not None
        try:
            # never waits long: the process is at rest, as one that did not answer in time was ended
            self._calls.send_bytes(msgspec.msgpack.encode([operation, arguments]))
            if not self._calls.poll(max(0.0, deadline - time.monotonic())):
                raise TierTimeoutError(f"{self._title}: no answer to {operation} in time")
            is_done, value = msgspec.msgpack.decode(self._calls.recv_bytes())
        except (EOFError, OSError) as error:
            self._end()
            raise TierUnavailableError(f"the process that talks to Mooncake ended: {error!r}") from None
        except BaseException:
            self._end()
            raise
        if not is_done:
            if operation == "setup":
                self._end()
            raise TierUnavailableError(f"{operation}: {value}")
        return value

    def _end(self) -> None:
        calls, self._calls = self._calls, None
        process, self._process = self._process, None
        if calls is not None:
            calls.close()
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the process, which has lent the cluster nothing. A later call starts another."""
        with self._turn:
            self._end()
