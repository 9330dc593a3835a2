"""What is said of each backend: every device has its own, what is cited is there, and a stop qualifies nothing."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from llama_cachegen import Engine
from llama_cachegen.backends import BACKENDS, Evidence, evidence_of, list_devices
from llama_cachegen.cli import cli
from llama_cachegen.qualify.certificate import read_certificate
from llama_cachegen.qualify.tables import TABLES


@pytest.mark.parametrize(
    ("device", "name"),
    [("CPU", "CPU"), ("CUDA0", "CUDA"), ("CUDA11", "CUDA"), ("ROCm1", "HIP"), ("MTL0", "Metal"), ("Metal", "Metal")],
)
def test_a_device_has_its_backends_evidence(device: str, name: str) -> None:
    known = evidence_of(device)
    assert known is not None and known.name == name


@pytest.mark.parametrize("device", ["", "CUDAx", "Vulkan0", "BLAS", "CPU0"])
def test_of_other_devices_nothing_is_known(device: str) -> None:
    assert evidence_of(device) is None


def test_what_is_cited_is_there(root: Path) -> None:
    for backend in BACKENDS:
        assert backend.shown_by
        for path in backend.shown_by:
            assert (root / path).is_file(), path


def test_nothing_claims_hardware_that_it_did_not_run_on() -> None:
    pending = {one.name for one in BACKENDS if one.level is not Evidence.HARDWARE}
    assert pending == {"HIP", "Metal"}
    assert all("pending hardware" in one.level.value for one in BACKENDS if one.name in pending)


def test_a_pass_qualifies_and_a_stop_does_not(root: Path, certificate_path: Path) -> None:
    certificate = msgspec.structs.replace(read_certificate(certificate_path), is_quick=False)

    def level_of_cpu(outcome: str) -> str:
        decision = msgspec.structs.replace(certificate.decision, outcome=outcome)
        one = msgspec.structs.replace(certificate, decision=decision)
        lines = TABLES["backends"]([one], root / "docs/certificates", root / "README.md")
        (line,) = [line for line in lines if line.startswith("| CPU |")]
        return line

    assert "hardware-qualified" in level_of_cpu("pass")
    assert "hardware-qualified" not in level_of_cpu("stop") and "**stop**" in level_of_cpu("stop")


def test_doctor_names_every_device(tiny_model: Path) -> None:
    found = [one.name for one in list_devices()]
    assert "CPU" in found
    runner = CliRunner()
    report = json.loads(runner.invoke(cli, ["doctor", "--json"]).stdout)
    assert [one["device"] for one in report["devices"]] == found
    assert "run on hardware" in runner.invoke(cli, ["doctor"]).stdout
    with Engine(tiny_model, n_ctx=256) as engine:
        assert {one.evidence for one in engine.capabilities().archives} == {Evidence.HARDWARE.value}
