"""The table of comparisons: no cell of it is empty without a reason, and the reasons hold.

Its name comes after those of the tests that fill the table, so that a whole run has filled it by now.
"""

from __future__ import annotations

import numpy as np
import pytest
from codec_cases import isa, random_planes, transposed_rows  # noqa: F401
from llama_cachegen import codec
from llama_cachegen.codec import Archive, CodecError, Plane
from llama_cachegen.codec._lib import lib
from llama_cachegen.codec.legacy import Ckg1Kind, Ckg1Part, decode_tile, encode_ckg1, encode_tile
from llama_cachegen.codec.reference import ValueType
from llama_cachegen.codec.reference import ckg1 as reference_ckg1
from llama_cachegen.ggml_types import GgmlType
from parity import CELLS, FORMATS, IMPLEMENTATIONS, ORACLE, SCALAR, Cell, Parity, why_not

# of the tests that compare, those that reach every cell of a format or of an instruction set
FILL_THE_TABLE = {
    "test_every_type",
    "test_tile_from_and_into_every_type",
    "test_archive_of_every_kind",
    "test_read_and_decode_lmcaches_container",
    "test_plain",
    "test_neon",
}


def test_every_cell_was_compared(parity: Parity, request: pytest.FixtureRequest) -> None:
    selected = {item.originalname for item in request.session.items if isinstance(item, pytest.Function)}
    if not FILL_THE_TABLE.issubset(selected):
        pytest.skip("this run leaves out tests that fill the table")
    assert parity.missing() == []


@pytest.mark.parametrize("type_", [GgmlType.Q8_0, GgmlType.Q4_0])
def test_blocks_have_no_transposed_layout(isa: str, type_: GgmlType) -> None:  # noqa: F811
    rows = random_planes(1, 64, types=[type_])[0]
    # 64 tokens of 64 channels are as many blocks in either layout
    transposed = Plane(rows.data.copy(), type_, 64, transposed=True)
    for version in (1, 2):
        tile = encode_tile(rows, 32, version)
        with pytest.raises(CodecError, match="ERR_UNSUPPORTED"):
            decode_tile(tile, transposed)
        with pytest.raises(CodecError, match="ERR_UNSUPPORTED"):
            encode_tile(transposed, 32, version)
    for profile in ("balanced", "exact"):
        with Archive(codec.encode([rows], profile)) as archive, pytest.raises(CodecError, match="ERR_UNSUPPORTED"):
            archive.decode([transposed])
        with pytest.raises(CodecError, match="ERR_UNSUPPORTED"):
            codec.encode([transposed], profile)
    for kind in (kind for kind in Ckg1Kind if kind is not Ckg1Kind.EXACT):
        with pytest.raises(CodecError, match=r"ERR_(ARGUMENT|UNSUPPORTED)"):
            encode_ckg1([Ckg1Part(kind, transposed)])


def test_ckg1_has_no_bf16() -> None:
    assert [(int(a), a.name) for a in Ckg1Kind] == [(int(b), b.name) for b in reference_ckg1.Ckg1Kind]
    rows = random_planes(1, 64, types=[GgmlType.BF16])[0]
    transposed = Plane(transposed_rows(rows.data, GgmlType.BF16), GgmlType.BF16, 64, transposed=True)
    for kind in (kind for kind in Ckg1Kind if kind is not Ckg1Kind.EXACT):
        for plane in (rows, transposed):
            with pytest.raises(CodecError, match="ERR_ARGUMENT"):
                encode_ckg1([Ckg1Part(kind, plane)])


def test_the_container_is_python_alone() -> None:
    assert {value_type.name for value_type in ValueType} == {"FLOAT32", "FLOAT16", "BFLOAT16"}
    functions = [name for name in dir(lib) if name.startswith("cachegen_")]
    assert len(functions) > 20 and not any("container" in name or "lmcache" in name for name in functions)


def test_only_what_is_equal_counts() -> None:
    fresh = Parity()
    cell = Cell("LCG3", GgmlType.F32)
    zero, minus_zero = np.zeros(3, np.float32), -np.zeros(3, np.float32)
    assert fresh.table() == ""
    for different in (minus_zero, zero[:2], np.zeros(4, np.float32)):
        with pytest.raises(AssertionError):
            fresh.same(cell, SCALAR, ORACLE, zero, different)
    with pytest.raises(AssertionError, match="nothing to compare"):
        fresh.same(cell, SCALAR, ORACLE, zero[:0], zero[:0])
    assert fresh.n(cell, SCALAR) == 0
    fresh.same(cell, SCALAR, ORACLE, zero, zero.tobytes())
    fresh.same(cell, SCALAR, "source", zero, zero)
    assert (fresh.n(cell, SCALAR), fresh.n(cell, ORACLE), fresh.n(cell, "AVX2")) == (2, 1, 0)
    for bad, one, other in [
        (Cell("CKG1", GgmlType.BF16), SCALAR, ORACLE),
        (Cell("LMCache", GgmlType.F16), SCALAR, "LMCache"),
        (Cell("LMCache", GgmlType.F16), ORACLE, SCALAR),
        (Cell("LCG4", GgmlType.F16), SCALAR, ORACLE),
        (cell, SCALAR, SCALAR),
        (cell, SCALAR, "hearsay"),
    ]:
        with pytest.raises(AssertionError):
            fresh.same(bad, one, other, zero, zero)


def test_the_table_has_every_cell() -> None:
    full = Parity()
    for cell in CELLS:
        for implementation in IMPLEMENTATIONS:
            if why_not(cell, implementation) is None:
                full.count(cell, implementation, "source", 7)
    assert full.missing() == []
    lines = full.table().splitlines()
    rows = [line for line in lines if line[11:].startswith(IMPLEMENTATIONS)]
    assert len(rows) == len(FORMATS) * len(IMPLEMENTATIONS)
    assert len(lines) <= 40 and max(map(len, lines)) <= 120
    n_possible = sum(why_not(cell, implementation) is None for cell in CELLS for implementation in IMPLEMENTATIONS)
    assert sum(row.split().count("7") for row in rows) == n_possible
    empty = Parity()
    empty.absent["NEON"] = "no emulator"
    assert len(empty.missing()) == n_possible - sum(why_not(cell, "NEON") is None for cell in CELLS)
    empty.count(Cell("LCG1", GgmlType.F16), SCALAR, "format page")
    assert "-d: NEON: no emulator" in empty.table()
