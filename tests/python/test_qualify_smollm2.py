"""`llama-cachegen qualify --quick` on the real model: what CI runs. No speed is asserted."""

from __future__ import annotations

from pathlib import Path

from llama_cachegen.models import KNOWN_MODELS
from llama_cachegen.qualify.certificate import read_certificate
from llama_cachegen.qualify.verify import verify_certificate
from qualify_cases import qualify


def test_quick(tmp_path: Path) -> None:
    result = qualify(tmp_path, "--workload", "smollm2-1k", "--quick", "--rows", "q8_0/f16")
    assert result.returncode == 0, result.stderr
    (path,) = (tmp_path / "build/qualify/certificates").glob("*.json")
    certificate = read_certificate(path)
    verify_certificate(certificate)
    assert certificate.is_quick and certificate.model.sha256 == KNOWN_MODELS["smollm2"].sha256
    (row,) = certificate.rows
    assert row.component_types == {"K": "q8_0", "V": "f16"} and row.control == "native"
    native = 999 * 30 * 192 * 2 + 999 * 30 * (192 // 32) * 34
    assert native <= row.native_bytes <= native + 60 * 64  # components of a page are aligned
    for name in ("llama-state", "native", "exact"):  # the same bits, so the same answers
        quality = row.case(name).quality
        assert quality is not None and quality.kl_max_nats == 0 and quality.free_agreement == 1
        assert [task.n_lost for task in row.case(name).retrieval] == [0, 0]
    balanced = row.case("balanced")
    assert balanced.quality is not None and 0 < balanced.quality.kl_mean_nats < 0.1
    assert balanced.file_bytes < row.native_bytes / 4
    assert {task.kind: task.n_tasks for task in balanced.retrieval} == {"needle": 1, "key-value": 1}
    assert balanced.restore_peak_bytes is None or balanced.restore_peak_bytes > balanced.file_bytes / 2
    recompute = row.case("recompute").summaries["warm.ttft_ms"]
    assert recompute.p50 > balanced.summaries["warm.ttft_ms"].p50
