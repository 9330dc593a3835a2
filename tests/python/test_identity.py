"""Page identities: every field has its miss, and the JSON is canonical and strict."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_cachegen.errors import (
    ContextError,
    MissReason,
    PageFileCorruptError,
    PageFileVersionError,
    PageMismatchError,
)
from llama_cachegen.ggml_types import GgmlType, type_name
from llama_cachegen.page_identity import (
    PageIdentity,
    RopeIdentity,
    compare_identity,
    decode_identity,
    encode_identity,
)

ROPE = RopeIdentity(
    rope_type=0,
    n_ctx_orig_yarn=8192,
    freq_base=100000.0,
    freq_scale=1.0,
    yarn_ext_factor=0.0,
    yarn_attn_factor=1.0,
    yarn_beta_fast=32.0,
    yarn_beta_slow=1.0,
)
LIVE = PageIdentity(
    model_blake3="0123456789abcdef" * 4,
    model_name="tiny.gguf",
    namespace="",
    llama_commit="ab" * 20,
    patch_digest="cd" * 32,
    abi_version=1,
    endianness="little",
    rope=ROPE,
)

CHANGES: dict[str, tuple[MissReason, Any]] = {
    "model_blake3": (MissReason.MODEL, "fedcba9876543210" * 4),
    "namespace": (MissReason.NAMESPACE, "tenant"),
    "llama_commit": (MissReason.LLAMA_COMMIT, "ef" * 20),
    "patch_digest": (MissReason.PATCH_DIGEST, "01" * 32),
    "abi_version": (MissReason.ABI, 2),
    "endianness": (MissReason.ENDIANNESS, "big"),
}


def test_equal_identities_pass() -> None:
    compare_identity(LIVE, LIVE)
    compare_identity(decode_identity(encode_identity(LIVE)), LIVE)


def test_the_model_name_is_not_compared() -> None:
    compare_identity(msgspec.structs.replace(LIVE, model_name="renamed.gguf"), LIVE)


def test_every_field_is_covered() -> None:
    assert set(LIVE.__struct_fields__) == {*CHANGES, "format", "model_name", "rope"}


@pytest.mark.parametrize("field", CHANGES)
def test_each_field_has_its_reason(field: str) -> None:
    reason, value = CHANGES[field]
    page = msgspec.structs.replace(LIVE, **{field: value})
    with pytest.raises(PageMismatchError) as caught:
        compare_identity(page, LIVE)
    assert caught.value.reason is reason
    assert caught.value.actual == value
    assert caught.value.expected == getattr(LIVE, field)
    assert field in caught.value.detail
    for shown in (value, getattr(LIVE, field)):
        assert (shown[:12] if isinstance(shown, str) else str(shown)) in caught.value.detail
    if isinstance(value, str) and len(value) > 12:
        assert value[:13] not in caught.value.detail


@pytest.mark.parametrize("field", ROPE.__struct_fields__)
def test_each_rope_field_is_a_rope_miss(field: str) -> None:
    value = getattr(ROPE, field) + 1
    page = msgspec.structs.replace(LIVE, rope=msgspec.structs.replace(ROPE, **{field: value}))
    with pytest.raises(PageMismatchError) as caught:
        compare_identity(page, LIVE)
    assert caught.value.reason is MissReason.ROPE
    assert (caught.value.actual, caught.value.expected) == (value, getattr(ROPE, field))
    assert f"rope.{field}" in caught.value.detail
    assert str(value) in caught.value.detail and str(getattr(ROPE, field)) in caught.value.detail


def test_the_first_difference_is_named() -> None:
    page = msgspec.structs.replace(
        LIVE,
        rope=msgspec.structs.replace(ROPE, freq_base=1.0),
        **{field: value for field, (_, value) in CHANGES.items()},
    )
    for field, (reason, _) in CHANGES.items():
        with pytest.raises(PageMismatchError) as caught:
            compare_identity(page, LIVE)
        assert caught.value.reason is reason
        page = msgspec.structs.replace(page, **{field: getattr(LIVE, field)})
    with pytest.raises(PageMismatchError) as caught:
        compare_identity(page, LIVE)
    assert caught.value.reason is MissReason.ROPE


FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(
    rope=st.builds(
        RopeIdentity,
        rope_type=st.integers(-1, 64),
        n_ctx_orig_yarn=st.integers(0, 2**32 - 1),
        freq_base=FLOATS,
        freq_scale=FLOATS,
        yarn_ext_factor=FLOATS,
        yarn_attn_factor=FLOATS,
        yarn_beta_fast=FLOATS,
        yarn_beta_slow=FLOATS,
    ),
    namespace=st.text(max_size=20),
    name=st.text(max_size=20),
    abi_version=st.integers(0, 0xFFFF),
)
def test_json_round_trip(rope: RopeIdentity, namespace: str, name: str, abi_version: int) -> None:
    identity = msgspec.structs.replace(LIVE, rope=rope, namespace=namespace, model_name=name, abi_version=abi_version)
    data = encode_identity(identity)
    assert decode_identity(data) == identity
    assert encode_identity(decode_identity(data)) == data
    keys = list(json.loads(data))
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"abi_version":1', b'"abi_version":1,"more":1'),
        (b'"abi_version":1,', b""),
        (b'"abi_version":1', b'"abi_version":"1"'),
        (b'"abi_version":1', b'"abi_version":-1'),
        (b'"abi_version":1', b'"abi_version":65536'),
        (b'"abi_version":1', b'"abi_version":1' + b"0" * 5000),
        (b'"freq_base":100000.0', b'"freq_base":NaN'),
        (b'"freq_base":100000.0', b'"freq_base":1e999'),
        (b'"freq_base":100000.0', b'"freq_base":null'),
        (b'"freq_base":100000.0', b'"freq_base":100000.0,"more":1'),
        (b'"rope_type":0', b'"rope_type":0.5'),
        (b'"rope_type":0', b'"rope_type":1' + b"0" * 400),
        (b'"endianness":"little"', b'"endianness":"middle"'),
        (b'"namespace":""', b'"namespace":"\xff"'),
        (b'"namespace":""', b'"namespace":"\\ud800"'),
        (b"}}", b"}"),
        (b"}}", b"}}x"),
    ],
)
def test_json_is_read_strictly(old: bytes, new: bytes) -> None:
    data = encode_identity(LIVE)
    assert old in data
    with pytest.raises(PageFileCorruptError):
        decode_identity(data.replace(old, new))


@given(st.binary(max_size=200))
def test_no_bytes_break_the_decoder(data: bytes) -> None:
    with pytest.raises(PageFileCorruptError):
        decode_identity(data)


def test_another_format_is_a_version_error() -> None:
    with pytest.raises(PageFileVersionError, match="native/2"):
        decode_identity(encode_identity(LIVE).replace(b"native/1", b"native/2"))
    with pytest.raises(ValueError, match="native/2"):
        encode_identity(msgspec.structs.replace(LIVE, format="native/2"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_values_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        msgspec.structs.replace(ROPE, freq_scale=value)


def test_names_that_are_no_text() -> None:
    assert decode_identity(encode_identity(msgspec.structs.replace(LIVE, model_name="a\udc80b"))).model_name == "a?b"
    with pytest.raises(ValueError, match="namespace"):
        msgspec.structs.replace(LIVE, namespace="\udc80")


def test_an_identity_has_a_size_limit() -> None:
    with pytest.raises(ValueError, match="at most"):
        encode_identity(msgspec.structs.replace(LIVE, namespace="n" * (1 << 20)))


@pytest.mark.parametrize("member", list(GgmlType))
def test_ggml_types_parse(member: GgmlType) -> None:
    assert GgmlType.parse(member.type_name) is member
    assert GgmlType.parse(member.type_name.upper()) is member
    assert GgmlType.parse(int(member)) is member
    assert GgmlType.parse(member) is member
    assert type_name(int(member)) == member.type_name
    assert member.row_bytes(member.block_size * 3) == member.block_bytes * 3


def test_ggml_type_numbers() -> None:
    assert GgmlType.parse(0) is GgmlType.F32
    assert {int(member) for member in GgmlType} == {0, 1, 2, 3, 6, 7, 8, 20, 30}
    assert (type_name(99), type_name(-1)) == ("type 99", "type -1")
    assert GgmlType.Q8_0.row_bytes(64) == 68


@pytest.mark.parametrize("value", ["", "f17", "0", 99, -1, True])
def test_unknown_ggml_types_are_refused_with_the_names(value: Any) -> None:
    with pytest.raises(ContextError, match=r"f32, f16, q4_0, .*bf16"):
        GgmlType.parse(value)


def test_a_row_is_whole_blocks() -> None:
    for n_values in (33, -32):
        with pytest.raises(ContextError, match="q8_0"):
            GgmlType.Q8_0.row_bytes(n_values)
