"""The process that talks to Mooncake. A script: it takes calls from a descriptor, one after another, until that ends.

Mooncake's library answers a dead cluster late, and takes the process down with it if that ends meanwhile. So it gets
one of its own, which can be ended at any time; see `mooncake_process`. Imports nothing of this package.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

sys.path.pop(0)  # this folder, whose names are not meant for others

import msgspec


def _head(client: Any, name: str, n_bytes: int) -> bytes:
    """The first bytes of an object that has as many; b"" if they cannot be read."""
    buffer = (ctypes.c_char * n_bytes)()
    address = ctypes.addressof(buffer)
    if client.register_buffer(address, n_bytes) != 0:
        return b""
    try:
        ((came,),) = client.get_into_ranges([address], [[name]], [[[0]]], [[[0]]], [[[n_bytes]]])[0]
    finally:
        client.unregister_buffer(address)
    return bytes(buffer) if came == n_bytes else b""


def _answer(client: Any, mooncake: Any, operation: str, arguments: list[Any]) -> Any:
    if operation == "head":
        return _head(client, *arguments)
    if operation in ("put", "upsert"):
        name, data, n_replicas = arguments
        config = mooncake.ReplicateConfig()
        config.replica_num = n_replicas
        return getattr(client, operation)(name, data, config)
    if operation in ("setup", "get_size", "get", "get_batch", "batch_is_exist", "remove"):
        return getattr(client, operation)(*arguments)
    raise ValueError(f"no operation {operation!r}")


def main() -> None:
    """Take calls [operation, arguments] and answer [whether it worked, value or why not], all in MessagePack."""
    calls = Connection(int(sys.argv[1]))
    mooncake: Any = None
    client: Any = None
    while True:
        try:
            operation, arguments = msgspec.msgpack.decode(calls.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # whoever called has ended
        try:
            if client is None:
                mooncake = importlib.import_module("mooncake.store")
                client = mooncake.MooncakeDistributedStore()
            reply = [True, _answer(client, mooncake, operation, arguments)]
        except Exception as error:
            reply = [False, f"{type(error).__name__}: {error}"]
        calls.send_bytes(msgspec.msgpack.encode(reply))


main()
