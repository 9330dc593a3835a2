"""Read a pickle as a tree of inert values: nothing is imported, constructed or called, whatever the bytes say.

A pickle is a program for a small stack machine. Of its instructions this reader knows the few that LMCache's containers
and torch's legacy storages consist of. A global is a name that has to be on the caller's list; calling one gives a
`Call`, making an instance of one an `Instance`, a persistent id a `PersistentId`. What they mean is for the caller to
check. Time and memory are bounded by the size of the input and by the limits below.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple, NoReturn

from ..errors import ArchiveError, UnsupportedArchiveError
from ._status import bad_archive, unsupported

__all__ = ["Call", "Global", "Instance", "PersistentId", "Reader"]

MAX_INSTRUCTIONS = 100_000
MAX_STACK = 4096
MAX_MEMO = 65_536
MAX_TEXT_BYTES = 256
MAX_INT_BYTES = 16


class Global(NamedTuple):
    """A name that was not looked up."""

    module: str
    name: str


class Call(NamedTuple):
    """A call that was not made."""

    function: Global
    arguments: tuple[Any, ...]


class PersistentId(NamedTuple):
    """A reference to something outside of the pickle."""

    value: Any


class Instance:
    """An object that was not made.

    Attributes:
        cls: its class.
        state: the attributes it was to get; None until the pickle has set them.
    """

    __slots__ = ("cls", "state")

    def __init__(self, cls: Global) -> None:
        self.cls = cls
        self.state: dict[str, Any] | None = None


class _Mark:
    """The stack's marker; not a value that a pickle can name."""


_MARK: Final = _Mark()


class Reader:
    """One or more pickles in a row.

    Attributes:
        offset: bytes read so far.
    """

    def __init__(
        self,
        data: bytes,
        what: str,
        allowed: Collection[Global],
        protocols: Collection[int],
        max_instructions: int = MAX_INSTRUCTIONS,
    ) -> None:
        """
        Args:
            data: the bytes.
            what: what the bytes are, for messages.
            allowed: the globals that may be named.
            protocols: the protocols that are read.
            max_instructions: of all its pickles together.
        """
        self.offset = 0
        self._data = data
        self._what = what
        self._allowed = frozenset(allowed)
        self._protocols = frozenset(protocols)
        self._n_instructions = 0
        self._max_instructions = max_instructions
        self._reset()

    def _reset(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._frame_end: int | None = None

    # input

    def error(self, status: str, message: str) -> ArchiveError:
        """An error that says where in the pickle it was found."""
        return bad_archive(status, f"{self._what}, near byte {self.offset}: {message}")

    def _refuse(self, message: str) -> NoReturn:
        raise self.error("MAGIC", f"{message}; this is not an LMCache container, or a damaged one; do not unpickle it")

    def skip(self, n_bytes: int) -> int:
        """Pass over bytes.

        Returns:
            where they begin.

        Raises:
            ArchiveError: there are not so many (ERR_TRUNCATED).
        """
        rest = len(self._data) - self.offset
        if n_bytes > rest:
            raise self.error("TRUNCATED", f"{n_bytes} more bytes are needed, {rest} are there; fetch or make it again")
        end = self.offset + n_bytes
        if self._frame_end is not None and self.offset < self._frame_end < end:
            self._refuse("an instruction crosses the end of its frame")
        begin, self.offset = self.offset, end
        return begin

    def take(self, n_bytes: int) -> bytes:
        """The next bytes; see `skip`."""
        begin = self.skip(n_bytes)
        return self._data[begin : self.offset]

    def _unpack(self, form: str) -> int:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(value)

    def _text(self, n_bytes: int) -> str:
        if n_bytes > MAX_TEXT_BYTES:
            self._refuse(f"a text of {n_bytes} bytes, more than {MAX_TEXT_BYTES}")
        return self._decoded(self.take(n_bytes))

    def _decoded(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._refuse("a text that is not UTF-8")

    def _line(self) -> str:
        line = bytearray()
        while (byte := self.take(1)[0]) != 0x0A:
            line.append(byte)
            if len(line) > MAX_TEXT_BYTES:
                self._refuse(f"a name of more than {MAX_TEXT_BYTES} bytes")
        return self._decoded(bytes(line))

    # the stack

    def _push(self, value: Any) -> None:
        if len(self._stack) >= MAX_STACK:
            raise self.error("LIMIT", f"more than {MAX_STACK} values on the stack")
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            self._refuse("an instruction finds too few values on the stack")
        return self._stack.pop()

    def _pop_to_mark(self) -> list[Any]:
        values = []
        while self._stack and self._stack[-1] is not _MARK:
            values.append(self._stack.pop())
        if not self._stack:
            self._refuse("an instruction finds no mark on the stack")
        self._stack.pop()
        return values[::-1]

    def _remember(self, index: int) -> None:
        if len(self._memo) >= MAX_MEMO:
            raise self.error("LIMIT", f"more than {MAX_MEMO} remembered values")
        value = self._pop()
        self._memo[index] = value
        self._push(value)

    def _recall(self, index: int) -> None:
        if index not in self._memo:
            self._refuse(f"value {index} is used before it is remembered")
        self._push(self._memo[index])

    # instructions

    def _global(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            self._refuse("a global whose name is not text")
        found = Global(module, name)
        if found not in self._allowed:
            self._refuse(f"it names {module!a}.{name!a}, which no such file has")
        self._push(found)

    def _tuple(self, n: int) -> None:
        self._push(tuple([self._pop() for _ in range(n)][::-1]))

    def _extend(self, values: list[Any]) -> None:
        target = self._pop()
        if type(target) is not list:
            self._refuse("items are added to what is not a list")
        target.extend(values)
        self._push(target)

    def _set_items(self, values: list[Any]) -> None:
        target = self._pop()
        if type(target) is not dict or len(values) % 2:
            self._refuse("items are set in what is not a dictionary, or a key lacks its value")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) is not str or key in target:
                self._refuse("a key that is not a text, or comes twice")
            target[key] = value
        self._push(target)

    def _call(self) -> None:
        arguments, function = self._pop(), self._pop()
        if type(function) is not Global or type(arguments) is not tuple:
            self._refuse("a call of what is not a function, or without arguments")
        self._push(Call(function, arguments))

    def _instance(self) -> None:
        arguments, cls = self._pop(), self._pop()
        if type(cls) is not Global or arguments != ():
            self._refuse("an instance of what is not a class, or one made with arguments")
        self._push(Instance(cls))

    def _build(self) -> None:
        state, target = self._pop(), self._pop()
        if type(target) is not Instance or type(state) is not dict or target.state is not None:
            self._refuse("attributes are set on what has none, are not named, or are set twice")
        target.state = state
        self._push(target)

    def _long(self, n_bytes: int) -> None:
        if n_bytes > MAX_INT_BYTES:
            self._refuse(f"an integer of {n_bytes} bytes")
        self._push(int.from_bytes(self.take(n_bytes), "little", signed=True))

    def _frame(self, n_bytes: int) -> None:
        if self._frame_end is not None:
            self._refuse("a frame inside of a frame")
        if n_bytes > len(self._data) - self.offset:
            raise self.error("TRUNCATED", f"a frame of {n_bytes} bytes ends behind the file; fetch or make it again")
        self._frame_end = self.offset + n_bytes

    _INSTRUCTIONS: Final[dict[int, Callable[[Reader], object]]] = {
        ord("("): lambda r: r._push(_MARK),
        ord("N"): lambda r: r._push(None),
        0x88: lambda r: r._push(True),
        0x89: lambda r: r._push(False),
        ord("K"): lambda r: r._push(r._unpack("<B")),
        ord("M"): lambda r: r._push(r._unpack("<H")),
        ord("J"): lambda r: r._push(r._unpack("<i")),
        0x8A: lambda r: r._long(r._unpack("<B")),
        0x8C: lambda r: r._push(r._text(r._unpack("<B"))),
        ord("X"): lambda r: r._push(r._text(r._unpack("<I"))),
        ord("C"): lambda r: r._push(r.take(r._unpack("<B"))),
        ord("B"): lambda r: r._push(r.take(r._unpack("<I"))),
        0x8E: lambda r: r._push(r.take(r._unpack("<Q"))),
        ord(")"): lambda r: r._push(()),
        0x85: lambda r: r._tuple(1),
        0x86: lambda r: r._tuple(2),
        0x87: lambda r: r._tuple(3),
        ord("t"): lambda r: r._push(tuple(r._pop_to_mark())),
        ord("]"): lambda r: r._push([]),
        ord("a"): lambda r: r._extend([r._pop()]),
        ord("e"): lambda r: r._extend(r._pop_to_mark()),
        ord("}"): lambda r: r._push({}),
        ord("s"): lambda r: r._set_items([r._pop(), r._pop()][::-1]),
        ord("u"): lambda r: r._set_items(r._pop_to_mark()),
        ord("c"): lambda r: r._global(r._line(), r._line()),
        0x93: lambda r: r._global(*[r._pop(), r._pop()][::-1]),
        ord("R"): lambda r: r._call(),
        0x81: lambda r: r._instance(),
        ord("b"): lambda r: r._build(),
        ord("Q"): lambda r: r._push(PersistentId(r._pop())),
        0x94: lambda r: r._remember(len(r._memo)),
        ord("q"): lambda r: r._remember(r._unpack("<B")),
        ord("r"): lambda r: r._remember(r._unpack("<I")),
        ord("h"): lambda r: r._recall(r._unpack("<B")),
        ord("j"): lambda r: r._recall(r._unpack("<I")),
        0x95: lambda r: r._frame(r._unpack("<Q")),
    }

    def read(self) -> Any:
        """The next pickle, up to its end.

        Returns:
            None, bool, int, str, bytes, tuple, list, dict, Global, Call, Instance or PersistentId. Lists, dicts and
            instances may contain each other and themselves: walk what you expect, never the whole.

        Raises:
            ArchiveError: the bytes end too early (ERR_TRUNCATED), are too much (ERR_LIMIT), or are not a pickle of this
                kind (ERR_MAGIC).
            UnsupportedArchiveError: another protocol (ERR_VERSION).
        """
        self._reset()
        if self.take(1)[0] != 0x80:
            self._refuse("it does not begin as a pickle")
        protocol = self.take(1)[0]
        if protocol not in self._protocols:
            raise self._other_protocol(protocol)
        while True:
            self._n_instructions += 1
            if self._n_instructions > self._max_instructions:
                raise self.error("LIMIT", f"more than {self._max_instructions} instructions")
            if self.offset == self._frame_end:
                self._frame_end = None
            opcode = self.take(1)[0]
            if opcode == ord("."):
                break
            instruction = self._INSTRUCTIONS.get(opcode)
            if instruction is None:
                self._refuse(f"instruction 0x{opcode:02x} has no place in such a file")
            instruction(self)
        result = self._pop()
        if self._stack or self._frame_end not in (None, self.offset):
            self._refuse("it ends before all of it was used")
        return result

    def _other_protocol(self, protocol: int) -> UnsupportedArchiveError:
        known = " and ".join(str(p) for p in sorted(self._protocols))
        return unsupported("VERSION", f"{self._what}: pickle protocol {protocol}; {known} can be read")
