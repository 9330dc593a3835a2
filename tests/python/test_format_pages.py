"""Format pages: what they say is what the code has, and their examples decode to the values they state."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from codec_cases import implementation, isa  # noqa: F401
from llama_cachegen.codec import Archive, Kind, Mode, Plane
from llama_cachegen.codec.reference.lcg3 import alias_slots, decode_lcg3
from llama_cachegen.ggml_types import GgmlType
from numpy.typing import NDArray
from parity import ORACLE, Cell, Parity

ROOT = Path(__file__).resolve().parents[2]
CODEC = ROOT / "native" / "codec"
PAGE = (ROOT / "docs" / "formats" / "lcg3.md").read_text(encoding="utf-8")
FORMAT_HEADER = (CODEC / "lcg3_format.h").read_text(encoding="utf-8")
STATUSES = set(re.findall(r"\bCACHEGEN_(ERR_\w+)\s*=", (CODEC / "cachegen.h").read_text(encoding="utf-8")))
# of the constants, next to those named max_... and min_..., what the page's table of limits has
LIMITS = {"n_lanes", "prob_bits", "state_low", "payload_alignment", "unit_alignment"}
TYPE_BYTES = {"i32": 4, "u8": 1, "u16": 2, "u32": 4, "u64": 8}
C_TYPES = {
    "int32_t": "i32", "uint8_t": "u8", "uint16_t": "u16", "uint32_t": "u32", "uint64_t": "u64", "char": "u8",
}  # fmt: skip


def section(title: str) -> str:
    """The text under a heading, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"the page has no section {title!r}"
    return found[1]


def table(text: str, first_column: str) -> list[list[str]]:
    """The cells of the table whose header begins with that column."""
    found = re.search(rf"^\| {re.escape(first_column)} \|.*\n\| --- .*\n((?:\|.*\n?)+)", text, re.MULTILINE)
    assert found, f"no table that begins with {first_column!r}"
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in found[1].splitlines()]


def constants() -> dict[str, int]:
    """The numbers of lcg3_format.h; `1u << name` and `1u << 24` are all its arithmetic."""
    numbers: dict[str, int] = {}
    for name, text in re.findall(r"^constexpr \w+ (\w+)\s*= ([^;]+);", FORMAT_HEADER, re.MULTILINE):
        first, *shift = (numbers[part] if part in numbers else int(part.rstrip("u"), 0) for part in text.split(" << "))
        numbers[name] = first << shift[0] if shift else first
    return numbers


def archive() -> bytes:
    found = re.search(r"^```hex\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found, "the page has no archive"
    return bytes.fromhex(found[1])


def stated_values() -> tuple[NDArray[np.float32], NDArray[np.uint16]]:
    """Values [13, 2] as F32 and their bits as F16, from the page's last table."""
    rows = table(section("Example").partition("All values")[2], "Token")
    assert [int(row[0]) for row in rows] == list(range(13))
    return (
        np.array([[float(cell) for cell in row[1:3]] for row in rows], dtype=np.float32),
        np.array([[int(cell, 16) for cell in row[3:5]] for row in rows], dtype=np.uint16),
    )


def test_the_native_library_decodes_the_example(parity: Parity, isa: str) -> None:  # noqa: F811
    values, bits = stated_values()
    with Archive(archive()) as opened:
        opened.verify()
        (plane,) = opened.planes
        assert (plane.layer, plane.kind, plane.mode, plane.type) == (5, Kind.V, Mode.LOSSY, GgmlType.F16)
        as_f16 = np.zeros((13, 2), dtype=np.float16)
        opened.decode([Plane(as_f16, GgmlType.F16, 2)])
        as_f32 = np.zeros((13, 2), dtype=np.float32)
        opened.decode([Plane(as_f32, GgmlType.F32, 2)])
    parity.same(Cell("LCG3", GgmlType.F16), implementation(), "format page", as_f16, bits)
    parity.same(Cell("LCG3", GgmlType.F32), implementation(), "format page", as_f32, values)


def test_the_numpy_decoder_decodes_the_example(parity: Parity) -> None:
    values, bits = stated_values()
    (plane,) = decode_lcg3(archive())
    assert (plane.layer, plane.kind, plane.mode, plane.type) == (5, Kind.V, Mode.LOSSY, GgmlType.F16)
    assert plane.values is not None
    np.testing.assert_array_equal(plane.exact_rows.view(np.uint16), bits[:1])
    parity.same(Cell("LCG3", GgmlType.F32), ORACLE, "format page", plane.values, values[1:])
    parity.same(Cell("LCG3", GgmlType.F16), ORACLE, "format page", plane.values.astype(np.float16), bits[1:])


def test_the_annotation_covers_the_example() -> None:
    data = archive()
    end = 0
    for start, stop, what, _ in table(section("Example"), "From"):
        assert int(start) == end, what
        end = int(stop)
        if what == "padding":
            assert not any(data[int(start) : end])
    assert end == len(data)


def test_the_slots_of_the_example() -> None:
    rows = table(section("Example"), "Class 0: slots")
    for context, frequencies in enumerate(([279, 93, 652], [373, 279, 372])):
        expected = alias_slots(np.array(frequencies))
        covered = 0
        for slots, symbol, ranks in (row[3 * context : 3 * context + 3] for row in rows):
            if not slots:
                continue
            first, last = map(int, slots.split(" .. "))
            first_rank, last_rank = map(int, ranks.split(" .. "))
            assert first == covered and last_rank - first_rank == last - first
            assert (expected[first : last + 1, 0] == int(symbol)).all()
            np.testing.assert_array_equal(expected[first : last + 1, 2], np.arange(first_rank, last_rank + 1))
            covered = last + 1
        assert covered == 1024


def test_the_steps_of_the_example() -> None:
    distributions = [alias_slots(np.array(f)) for f in ([279, 93, 652], [373, 279, 372])]
    rows = table(section("Example").partition("The first two coded tokens")[2], "Token")
    assert len(rows) == 6
    for row in rows:
        state, stated = int(row[2], 16), [int(number, 16) for number in re.findall(r"0x[0-9A-F]+", row[8])]
        context, slot, symbol, frequency, rank = map(int, row[3:8])
        assert state % 1024 == slot
        assert distributions[context][slot].tolist() == [symbol, frequency, rank]
        state = frequency * (state >> 10) + rank
        assert state == stated[0]
        if state < 65536:
            assert stated[1] == state << 16 | 0x70E2


@pytest.mark.parametrize(
    ("title", "struct"),
    [("Header", "header"), ("Plane record", "plane_record"), ("Symbol set", "set_record"),
     ("Unit of a lossy or exact plane", "unit_record")],
)  # fmt: skip
def test_field_tables_are_the_structs(title: str, struct: str) -> None:
    body = re.search(rf"^struct {struct} {{\n(.*?)^}};", FORMAT_HEADER, re.MULTILINE | re.DOTALL)
    assert body
    fields = []
    offset = 0
    for c_type, name, count in re.findall(r"^ +(\w+) +(\w+)(?:\[(\d+)\])?;", body[1], re.MULTILINE):
        type_ = C_TYPES[c_type]
        size = TYPE_BYTES[type_] * int(count or 1)
        fields.append([str(offset), str(size), "bytes" if count else type_, name])
        offset += size
    assert [row[:4] for row in table(section(title), "Offset")] == fields
    assert f"sizeof({struct}) == {offset}" in FORMAT_HEADER


def test_sizes_in_the_layout() -> None:
    sizes = dict(re.findall(r"sizeof\((\w+)\) == (\d+)", FORMAT_HEADER))
    rows = {row[0]: row[1:] for row in table(section("Layout"), "Section")}
    assert rows["header"] == ["0", sizes["header"]]
    assert rows["plane records"] == [sizes["header"], f"{sizes['plane_record']} · `n_planes`"]


def test_limits() -> None:
    numbers = constants()
    rows = table(section("Limits"), "Limit")
    assert {row[2].strip("`"): int(row[1]) for row in rows} == {
        name: number for name, number in numbers.items() if name.startswith(("max_", "min_")) or name in LIMITS
    }
    header = {row[3]: row[4] for row in table(section("Header"), "Offset")}
    assert header["magic"].startswith(f"0x{numbers['magic']:08X},")
    assert header["version"] == str(numbers["version"])
    for field, least, limit in [
        ("n_tokens", 1, "max_tokens"),
        ("n_exact_tokens", 0, "max_exact_tokens"),
        ("block_tokens", numbers["min_block_tokens"], "max_block_tokens"),
        ("n_planes", 1, "max_planes"),
        ("n_sets", 0, "max_sets"),
    ]:
        assert re.match(rf"{least} \.\. {numbers[limit]}\b", header[field]), field
    set_fields = {row[3]: row[4] for row in table(section("Symbol set"), "Offset")}
    assert set_fields["n_symbols"] == f"2 .. {numbers['max_symbols']}"
    assert set_fields["n_classes"] == f"1 .. {numbers['max_classes']}"
    assert set_fields["n_models"] == f"1 .. {numbers['max_models']}"
    plane = {row[3]: row[4] for row in table(section("Plane record"), "Offset")}
    assert plane["n_channels"].startswith(f"1 .. {numbers['max_channels']};")
    assert f"from 2 to {numbers['max_rotation']} " in plane["n_rot"]
    n_buckets = n_symbols = numbers["max_symbols"]
    n_models, n_classes = numbers["max_models"], numbers["max_classes"]
    most = 8 * (n_models + 1) * n_classes * n_buckets + 2 * n_models * n_classes * n_symbols
    assert f"at most {most} |" in section("Transient memory")


def test_statuses() -> None:
    rows = table(section("Conditions and responses"), "Condition")
    responses = {row[1].strip("`") for row in rows}
    assert responses <= STATUSES
    assert set(re.findall(r"\bERR_\w+", PAGE)) <= STATUSES
    # whatever the reader answers has its row
    raised = {
        status
        for name in ("lcg3_archive.cpp", "lcg3_decode.cpp", "bytes.h")
        for status in re.findall(r"fail\(CACHEGEN_(ERR_\w+)", (CODEC / name).read_text(encoding="utf-8"))
    }
    assert raised - responses <= {"ERR_STRUCT_SIZE", "ERR_BUFFER_SIZE"}  # of describe: no matter of the format
