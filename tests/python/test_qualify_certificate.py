"""Certificates: made by the harness on a tiny model, described by the schema, and found out when they are edited."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import rfc8785
from llama_cachegen import PATCH_DIGEST
from llama_cachegen.errors import CertificateError
from llama_cachegen.qualify.certificate import (
    Certificate,
    Link,
    certificate_schema,
    encode_certificate,
    read_certificate,
    seal,
    write_certificate,
)
from llama_cachegen.qualify.publish import publish
from llama_cachegen.qualify.verify import contradictions, read_all, verify_certificate


def committed_schema(root: Path) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((root / "docs/certificates/schema.json").read_text())
    return schema


def test_schema_is_the_committed_one(root: Path) -> None:
    schema = committed_schema(root)
    assert schema == json.loads(json.dumps(certificate_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)


def test_made_by_the_harness(root: Path, certificate_path: Path) -> None:
    plain = json.loads(certificate_path.read_text())
    jsonschema.validate(plain, committed_schema(root), cls=jsonschema.Draft202012Validator)
    certificate = read_certificate(certificate_path)
    verify_certificate(certificate)
    assert certificate.software.patch_digest == PATCH_DIGEST
    assert certificate.evidence == "synthetic weights" and certificate.model.is_synthetic
    assert re.fullmatch(r"[0-9a-f]{64}", certificate.model.sha256)

    (row,) = certificate.rows
    assert row.component_types == {"K": "f16", "V": "f16"} and row.control == "native"
    assert row.native_bytes == 2 * row.n_values == 2 * 319 * 2 * 2 * 64
    recompute = row.case("recompute")
    assert [len(process) for process in recompute.samples["warm.ttft_ms"]] == [1, 1, 1]
    for name in ("llama-state", "native", "balanced", "exact"):
        case = row.case(name)
        assert [len(process) for process in case.samples["warm.ttft_ms"]] == [5, 5, 5]
        assert [len(process) for process in case.samples["decode.step_ms"]] == [35, 35, 35]
        assert {"cold.read_ms", "cold.ttft_ms", "save.total_ms", "warm.first_token_ms"} <= set(case.samples)
        for restored, first, both in zip(
            *(case.samples[f"warm.{phase}_ms"] for phase in ("restore", "first_token", "ttft")), strict=True
        ):
            assert both == pytest.approx([a + b for a, b in zip(restored, first, strict=True)], abs=0.001)
        assert case.file_bytes > 0 and case.quality is not None and case.quality.n_forced == 48
    for name in ("llama-state", "native", "exact"):
        quality = row.case(name).quality
        assert quality is not None and quality.kl_max_nats == 0 and quality.agreement == quality.free_agreement == 1
    lossy, exact = row.case("balanced"), row.case("exact")
    assert lossy.quality is not None and lossy.quality.kl_mean_nats > 0 and not lossy.is_exact
    assert exact.quality is not None and exact.quality.is_same_again is True
    assert {"open_ms", "reserve_ms", "decode_ms", "commit_ms"} <= {
        name[5:] for name in lossy.samples if name[:5] == "warm."
    }
    assert [one.layer for one in lossy.layer_bits] == [0, 1]
    assert {"zstd -1", "lz4", "blosc2 bitshuffle+zstd", "CKG1 of LCG1", "CKG1 of LCG2", "LMCache CacheGen"} == {
        peer.name for peer in row.peers if peer.encoded_bytes
    }
    assert len(certificate.harness.empty_ms) == 600


def test_names_no_machine(certificate_path: Path) -> None:
    text = certificate_path.read_text()
    assert os.uname().nodename not in text and str(Path.home()) not in text and str(certificate_path.parent) not in text


def test_canonical_form() -> None:
    # the numbers and the order of names that RFC 8785 shows
    value = {"\u20ac": 1, "\r": 2, "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 1e-27], "1": True, "a": None}
    expected = '{"\\r":2,"1":true,"a":null,"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"€":1}'
    assert rfc8785.dumps(value).decode() == expected


def test_digest_is_of_the_canonical_form(certificate_path: Path) -> None:
    plain = json.loads(certificate_path.read_text())
    sealed = {name: value for name, value in plain.items() if name not in ("digest", "superseded_by")}
    assert plain["digest"] == hashlib.sha256(rfc8785.dumps(sealed)).hexdigest()
    # another layout of the same JSON has the same digest
    loose = certificate_path.with_name("loose") / certificate_path.name
    loose.parent.mkdir()
    loose.write_text(json.dumps(dict(reversed(plain.items()))))
    assert read_certificate(loose) == read_certificate(certificate_path)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of every number, word and truth value."""
    if isinstance(value, dict):
        return [place for name, item in value.items() for place in places(item, (*path, name))]
    if isinstance(value, list):
        return [place for i, item in enumerate(value) for place in places(item, (*path, i))]
    return [path]


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return "stop" if value == "pass" else f"{value or ''}x"


def test_every_edit_is_found(certificate_path: Path, tmp_path: Path) -> None:
    plain = json.loads(certificate_path.read_text())
    every = [place for place in places(plain) if place[0] != "superseded_by"]
    chosen = every[:: max(1, len(every) // 150)]  # the samples are thousands
    assert len(chosen) > 100
    path = tmp_path / certificate_path.name
    for place in chosen:
        edited = json.loads(certificate_path.read_text())
        at = edited
        for name in place[:-1]:
            at = at[name]
        at[place[-1]] = other(at[place[-1]])
        path.write_text(json.dumps(edited))
        with pytest.raises(CertificateError):
            read_certificate(path)


def edited(certificate: Certificate, name: str, change: Any) -> Certificate:
    """With a case of the first row changed, and sealed again: by someone who knows how."""
    (row,) = certificate.rows
    cases = [change(case) if case.name == name else case for case in row.cases]
    return seal(msgspec.structs.replace(certificate, rows=[msgspec.structs.replace(row, cases=cases)]))


def test_an_edit_with_a_new_seal_is_found(certificate_path: Path, tmp_path: Path) -> None:
    certificate = read_certificate(certificate_path)
    replace = msgspec.structs.replace

    def faster(case: Any) -> Any:
        ttft = [[value / 2 for value in process] for process in case.samples["warm.ttft_ms"]]
        return replace(case, samples={**case.samples, "warm.ttft_ms": ttft})

    def no_reason(case: Any) -> Any:
        return replace(case, gates=[replace(gate, measured=0.0) for gate in case.gates])

    def lost_process(case: Any) -> Any:
        return replace(case, samples={**case.samples, "warm.ttft_ms": case.samples["warm.ttft_ms"][1:]})

    for name, change in (("balanced", faster), ("recompute", faster), ("exact", no_reason), ("native", lost_process)):
        path = write_certificate(edited(certificate, name, change), tmp_path)
        with pytest.raises(CertificateError, match=r"do not follow from its samples|cannot be decided on"):
            verify_certificate(read_certificate(path))
    overall = seal(replace(certificate, decision=replace(certificate.decision, outcome="stop", reasons=["no"])))
    with pytest.raises(CertificateError, match="its decision does not follow from its rows"):
        verify_certificate(overall)


def test_damaged_files(certificate_path: Path, tmp_path: Path) -> None:
    data = certificate_path.read_bytes()
    path = tmp_path / certificate_path.name
    for damaged in (b"", data[:-5], b"[1]", b"\xff" + data, data.replace(b'"digest"', b'"digests"', 1), b"[" * 100_000):
        path.write_bytes(damaged)
        with pytest.raises(CertificateError, match="no certificate of version 1"):
            read_certificate(path)
    renamed = tmp_path / "other.json"
    renamed.write_bytes(data)
    with pytest.raises(CertificateError, match="its file must have that name"):
        read_certificate(renamed)


def test_publishing_marks_what_came_before(certificate_path: Path, tmp_path: Path) -> None:
    certificate = read_certificate(certificate_path)
    first = publish(certificate, tmp_path)
    second = publish(certificate, tmp_path)
    third = publish(certificate, tmp_path)
    assert (second.id, third.id) == (f"{first.id}-2", f"{first.id}-3")
    found, problems = read_all(tmp_path)
    assert problems == contradictions(found) == []
    by_id = {one.id: one for one in found}
    assert by_id[first.id].superseded_by == second.id and by_id[third.id].superseded_by is None
    assert by_id[second.id].supersedes == Link(id=first.id, digest=first.digest)
    assert by_id[first.id].digest == first.digest  # the mark is outside of the seal
    # a mark that only one side shows
    write_certificate(msgspec.structs.replace(by_id[second.id], superseded_by=None), tmp_path)
    assert any("is not marked so" in problem for problem in contradictions(read_all(tmp_path)[0]))
    with pytest.raises(CertificateError, match="is not marked so"):
        publish(certificate, tmp_path)
    write_certificate(msgspec.structs.replace(by_id[third.id], superseded_by=first.id), tmp_path)
    assert any("which does not say so" in problem for problem in contradictions(read_all(tmp_path)[0]))


def test_lists_of_numbers_are_on_one_line(certificate_path: Path) -> None:
    lines = encode_certificate(read_certificate(certificate_path)).decode().splitlines()
    assert len(lines) < 3000
