"""Who gave the same bits as whom: comparisons counted as they are made, and the table of them printed after a run."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from llama_cachegen.ggml_types import GgmlType
from numpy.typing import NDArray

ORACLE = "numpy oracle"
SCALAR = "native scalar"
NATIVE = (SCALAR, "AVX2", "AVX-512", "NEON")
IMPLEMENTATIONS = (ORACLE, *NATIVE)
# what no code under test has made: other people's bytes, bytes on a format page, the bytes that were encoded losslessly
GIVEN = ("LMCache", "format page", "source")

FORMATS = ("LCG1", "LCG2", "CKG1", "LCG3", "LCG3 exact", "LMCache")
TYPES = (GgmlType.F32, GgmlType.F16, GgmlType.BF16, GgmlType.Q8_0, GgmlType.Q4_0)

NOTES = {
    "a": "blocks of 32 channels have no transposed layout; the codec refuses it",
    "b": "CKG1 has no kind of record for BF16",
    "c": "LMCache's container is Python alone, no native code; its tensors are F32, F16 or BF16, in rows",
}


class Cell(NamedTuple):
    """What a comparison says something about.

    Attributes:
        format: one of FORMATS. Planes that LCG3 keeps lossless or raw are `LCG3 exact`.
        type: of the native side: what was encoded, or what was decoded into.
        transposed: its layout.
    """

    format: str
    type: GgmlType
    transposed: bool = False


CELLS = [Cell(name, type_, transposed) for name in FORMATS for type_ in TYPES for transposed in (False, True)]


def why_not(cell: Cell, implementation: str) -> str | None:
    """The letter of the note that says why there can be no such comparison; None if there can."""
    if cell.format == "LMCache" and (implementation != ORACLE or cell.transposed or cell.type.block_size > 1):
        return "c"
    if cell.transposed and cell.type.block_size > 1:
        return "a"
    if cell.format == "CKG1" and cell.type is GgmlType.BF16:
        return "b"
    return None


def as_bytes(data: bytes | NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array, so that NaN equals the same NaN and 0 differs from -0."""
    return np.frombuffer(data if isinstance(data, bytes) else data.tobytes(), dtype=np.uint8)


class Parity:
    """Comparisons of one test run.

    Attributes:
        absent: implementation -> why it cannot run here.
        remarks: what a test found that belongs below the table.
    """

    def __init__(self) -> None:
        self.absent: dict[str, str] = {}
        self.remarks: list[str] = []
        self._counts: Counter[tuple[Cell, str, str]] = Counter()

    def same(
        self, cell: Cell, implementation: str, other: str, actual: bytes | NDArray[Any], expected: bytes | NDArray[Any]
    ) -> None:
        """Fail unless two results have the same bits, then count it: one tile, plane or tensor.

        Args:
            cell: what they are.
            implementation: who made `actual`.
            other: who made `expected`: an implementation, or one of GIVEN.
            actual: bytes, at least one.
            expected: bytes that they have to equal.
        """
        left = as_bytes(actual)
        assert left.size > 0, "there is nothing to compare"
        np.testing.assert_array_equal(left, as_bytes(expected), err_msg=f"{cell}: {implementation} and {other} differ")
        self.count(cell, implementation, other)

    def count(self, cell: Cell, implementation: str, other: str, n: int = 1) -> None:
        """Count comparisons that an executable has made, and reports."""
        assert cell in CELLS and why_not(cell, implementation) is None, (cell, implementation)
        assert implementation != other and other in (*IMPLEMENTATIONS, *GIVEN), (implementation, other)
        self._counts[cell, implementation, other] += n
        if other in IMPLEMENTATIONS:
            assert why_not(cell, other) is None, (cell, other)
            self._counts[cell, other, implementation] += n

    def n(self, cell: Cell, implementation: str) -> int:
        """Comparisons in which an implementation took part."""
        return sum(n for (at, one, _), n in self._counts.items() if (at, one) == (cell, implementation))

    def missing(self) -> list[str]:
        """Cells without a comparison that could have had one."""
        return [
            f"{cell.format} {implementation} {cell.type.type_name} {'transposed' if cell.transposed else 'rows'}"
            for cell in CELLS
            for implementation in IMPLEMENTATIONS
            if why_not(cell, implementation) is None
            and implementation not in self.absent
            and not self.n(cell, implementation)
        ]

    def table(self) -> str:
        """The counts: a line for every format and implementation; empty without any."""
        if not self._counts:
            return ""
        lines = [
            "Tiles, planes and tensors, encoded from or decoded into this type and layout, whose bits were equal to",
            "another implementation's (counts for both) or to given ones: LMCache's, a format page's, the source's.",
            f"{'':25}" + "".join(f"{type_.type_name.upper():^14}"[:12] for type_ in TYPES) + "    equal to",
            f"{'format':25}" + "  rows   tr." * len(TYPES) + "    numpy  native  given",
        ]
        used: set[str] = set()
        for name in FORMATS:
            for implementation in IMPLEMENTATIONS:
                cells = [cell for cell in CELLS if cell.format == name]
                texts = []
                for cell in cells:
                    why = why_not(cell, implementation) or ("d" if implementation in self.absent else None)
                    used |= {why} if why else set()
                    texts.append(f"-{why}" if why else str(self.n(cell, implementation)))
                with_whom = Counter[str]()
                for (cell, one, other), n in self._counts.items():
                    if cell.format == name and one == implementation:
                        with_whom["numpy" if other == ORACLE else "native" if other in NATIVE else "given"] += n
                sums = [with_whom[key] or "" for key in ("numpy", "native", "given")]
                label = name if implementation == ORACLE else ""
                lines.append(
                    f"{label:11}{implementation:14}"
                    + "".join(f"{text:>6}" for text in texts)
                    + f"{sums[0]:>9}{sums[1]:>8}{sums[2]:>7}"
                )
        lines += [f"-{letter}: {NOTES[letter]}" for letter in sorted(used - {"d"})]
        lines += [f"-d: {implementation}: {why}" for implementation, why in self.absent.items()]
        lines += self.remarks
        return "\n".join(line.rstrip() for line in lines)
