"""The ggml types that a KV cache can have, under ggml's own numbers.

Number 0 is F32. It never means "unset".
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from .errors import ContextError

__all__ = ["GgmlType", "type_name"]


class _Block(NamedTuple):
    name: str
    n_values: int
    n_bytes: int


class GgmlType(enum.IntEnum):
    """A type of the K or the V cache. Values are stored in blocks of `block_size` values and `block_bytes` bytes."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    IQ4_NL = 20
    BF16 = 30

    @property
    def type_name(self) -> str:
        """ggml's name, for example "f16"."""
        return _BLOCKS[self].name

    @property
    def block_size(self) -> int:
        """Values of a block, 1 if the type is not quantised."""
        return _BLOCKS[self].n_values

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return _BLOCKS[self].n_bytes

    def row_bytes(self, n_values: int) -> int:
        """Bytes of a row of n_values values.

        Raises:
            ContextError: a row of this type cannot have that many.
        """
        if n_values < 0 or n_values % self.block_size:
            raise ContextError(
                f"a row of {n_values} values is not possible in {self.type_name}; its blocks hold {self.block_size}"
            )
        return n_values // self.block_size * self.block_bytes

    @classmethod
    def parse(cls, value: str | int | GgmlType) -> GgmlType:
        """The type of a name ("q8_0", in any case) or of a ggml number.

        Raises:
            ContextError: no type of a KV cache; the message lists the names.
        """
        if isinstance(value, str):
            for member, block in _BLOCKS.items():
                if block.name == value.lower():
                    return member
        elif isinstance(value, int) and not isinstance(value, bool):
            try:
                return cls(value)
            except ValueError:
                pass
        names = ", ".join(block.name for block in _BLOCKS.values())
        raise ContextError(f"{value!r} is not a type of a KV cache; choose one of {names}")


_BLOCKS = {
    GgmlType.F32: _Block("f32", 1, 4),
    GgmlType.F16: _Block("f16", 1, 2),
    GgmlType.Q4_0: _Block("q4_0", 32, 18),
    GgmlType.Q4_1: _Block("q4_1", 32, 20),
    GgmlType.Q5_0: _Block("q5_0", 32, 22),
    GgmlType.Q5_1: _Block("q5_1", 32, 24),
    GgmlType.Q8_0: _Block("q8_0", 32, 34),
    GgmlType.IQ4_NL: _Block("iq4_nl", 32, 18),
    GgmlType.BF16: _Block("bf16", 1, 2),
}


def type_name(number: int) -> str:
    """ggml's name of a type number, "type 99" for one this package does not know."""
    try:
        return GgmlType(number).type_name
    except ValueError:
        return f"type {number}"
