"""Qualification where the cache is on an accelerator: what stands for native pages, what the certificate says of it.

No accelerator is needed: native pages are refused by hand, and the card's tool only pretends.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import llama_cachegen
import msgspec
import numpy as np
import pytest
from llama_cachegen import Engine
from llama_cachegen.archive_file import ArchiveFile
from llama_cachegen.codec import Archive, Mode, encode, page_planes
from llama_cachegen.errors import QualifyError, UnsupportedMemoryError
from llama_cachegen.evaluate import archive_memory
from llama_cachegen.evaluate.archive_memory import can_measure_memory, measure_memory
from llama_cachegen.evaluate.caches import native_rows
from llama_cachegen.page import Page
from llama_cachegen.qualify import cases, native_archive, run, step_prepare
from llama_cachegen.qualify.cases import NATIVE, NATIVE_ARCHIVE
from llama_cachegen.qualify.certificate import encode_certificate, read_certificate, seal, write_certificate
from llama_cachegen.qualify.hardware import Hardware
from llama_cachegen.qualify.native_archive import native_archive_planes, native_size, save_native_archive
from llama_cachegen.qualify.provenance import COMMIT_VARIABLE, Software
from llama_cachegen.qualify.publish import publish
from llama_cachegen.qualify.report_page import report_page
from llama_cachegen.qualify.step_config import StepConfig
from llama_cachegen.qualify.step_peers import measure_peers
from llama_cachegen.qualify.step_quality import measure_quality
from llama_cachegen.qualify.step_tokens import make_tokens
from llama_cachegen.qualify.tables import peers_table, rows_table, summary_table
from llama_cachegen.qualify.verify import contradictions, read_all, verify_certificate
from llama_cachegen.qualify.worker import STEPS
from llama_cachegen.qualify.workload import load_workload
from qualify_cases import qualify, write_workload

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def step_config(folder: Path, model: Path, names: list[str], control: str, n_prompt: int = 200) -> StepConfig:
    workload = load_workload(write_workload(folder))
    return StepConfig(
        step="",
        n_process=0,
        model=str(model),
        texts=[],
        is_synthetic=True,
        n_prompt_tokens=n_prompt,
        type_k="f16",
        type_v="f16",
        n_batch=64,
        n_threads=1,
        n_gpu_layers=99,
        swa_full=False,
        folder=str(folder),
        tokens_folder=str(folder),
        cases=names,
        control=control,
        repeats=workload.repeats,
        steps=workload.steps,
    )


@pytest.mark.parametrize(("type_k", "type_v"), [("f16", "f16"), ("q8_0", "f32")])
def test_native_archive_holds_the_page(tiny_model: Path, tmp_path: Path, type_k: str, type_v: str) -> None:
    """All planes raw, their rows those of the page; restored and saved again, the page's bytes."""
    tokens = np.random.default_rng(1).integers(0, 64, 300).astype(np.int32)
    archive_path, page_path, again = tmp_path / "a", tmp_path / "p", tmp_path / "again"
    with Engine(tiny_model, n_ctx=512, type_k=type_k, type_v=type_v, n_threads=1) as engine:
        session = engine.session()
        session.prefill(tokens)
        session.save(page_path)
        save_native_archive(session, archive_path)
        session.close()
        session = engine.session()
        receipt = session.restore(archive_path, tokens)
        assert receipt.restored and receipt.is_exact and receipt.profile == "native"
        session.save(again)
    assert again.read_bytes() == page_path.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "again", "p"]  # no intermediate file
    with Page.open(page_path) as page:
        planes = page_planes(page)
        n_bytes = sum(native_rows(plane).nbytes for plane in planes)
        n_values = sum(300 * plane.n_channels for plane in planes)
        for ours, theirs in zip(native_archive_planes(archive_path), planes, strict=True):
            assert (ours.layer, ours.kind, ours.type) == (theirs.layer, theirs.kind, theirs.type)
            assert np.array_equal(native_rows(ours), native_rows(theirs))
    assert native_size(archive_path) == (n_bytes, n_values)
    file = ArchiveFile(archive_path)
    with Archive(file.archive) as archive:
        assert {plane.mode for plane in archive.planes} == {Mode.RAW}
    file.close()


def test_large_blocks_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native_archive._block_tokens(300 * 1024, 300) == 1024
    assert native_archive._block_tokens(1000 << 20, 1000) == 32  # a token of 1 MiB
    monkeypatch.setattr(native_archive, "_MOST_PART_BYTES", 64 * 1024)
    assert native_archive._block_tokens(300 * 1024, 300) == 64


def test_raw_planes_of_a_lossy_profile_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    with Engine(tiny_model, n_ctx=64, n_threads=1) as engine, engine.session() as session:
        session.prefill([1, 2, 3])
        session.save(tmp_path / "p")
    with Page.open(tmp_path / "p") as page, pytest.raises(ValueError, match="profile balanced: an exact one"):
        encode(page_planes(page), "balanced", is_raw=True)


Tool = Callable[[str], None]


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """nvidia_smi(body): a tool of that name is the only one on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(body: str) -> None:
        path = folder / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    return make


CARD = "[ \"$1\" = --query-gpu=name,driver_version ] && echo 'A Card, 580.1'"


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps run in this process, where native pages are refused and the cache says that it lies on a device."""
    save = step_prepare.save

    def refusing(session: Any, case: str, path: Path) -> Any:
        if case == NATIVE:
            raise UnsupportedMemoryError(55, "REFUSED_BACKEND", "layer 0 is on a device, which is not host memory")
        return save(session, case, path)

    def run_step(config: StepConfig, _name: str) -> dict[str, Any]:
        result = STEPS[config.step](config)
        return {**result, "component_backends": ["CUDA0"]} if config.step == "prepare" else result

    monkeypatch.setattr(step_prepare, "save", refusing)
    monkeypatch.setattr(run, "run_step", run_step)


@pytest.fixture
def offloaded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """n_gpu_layers of every engine that this process makes, and of those that measure memory."""
    found: list[int] = []

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, n_gpu_layers: int = -1, **named: Any) -> Any:
            found.append(n_gpu_layers)
            return call(*arguments, n_gpu_layers=n_gpu_layers, **named)

        return noted

    for module in (cases, archive_memory):
        monkeypatch.setattr(module, "Engine", noting(Engine))
    monkeypatch.setattr(run, "measure_memory", noting(measure_memory))
    return found


@pytest.mark.usefixtures("on_a_device")
def test_native_archive_is_the_control_where_pages_are_refused(
    nvidia_smi: Tool, tmp_path: Path, offloaded: list[int]
) -> None:
    nvidia_smi(CARD)
    workload = msgspec.structs.replace(load_workload(write_workload(tmp_path)), n_gpu_layers=99)
    made = run.run_qualification(workload, work=tmp_path / "work", tree=tmp_path)
    assert set(offloaded) == {99} and len(offloaded) > 6
    certificate = publish(made, tmp_path / "out")
    verify_certificate(read_certificate(tmp_path / "out" / f"{certificate.id}.json"))
    assert certificate.hardware.title.startswith("A Card (CUDA), ")
    assert certificate.id.startswith("tiny--a-card-")
    (row,) = certificate.rows
    # 2 layers of K and V, 319 tokens, one head of 64 values
    assert (row.n_values, row.native_bytes) == (4 * 319 * 64, 4 * 319 * 64 * 2)
    assert [case.name for case in row.cases[:4]] == ["recompute", "llama-state", NATIVE, NATIVE_ARCHIVE]
    control, lossy = row.case(NATIVE_ARCHIVE), row.case("balanced")
    assert row.control == control.name and control.decision is None and control.gates == [] and control.is_exact
    assert [len(process) for process in control.samples["warm.ttft_ms"]] == [5, 5, 5]
    assert not any(phase.startswith("save.") for phase in control.samples) and "save.total_ms" in lossy.samples
    assert control.quality is not None and control.quality.kl_max_nats == 0 and control.quality.free_agreement == 1
    gates = {gate.name: gate for gate in lossy.gates}
    assert "of native-archive" in gates["warm first token of control"].reason
    assert gates["size"].measured == pytest.approx(lossy.file_bytes / row.native_bytes)
    assert "is on a device" in row.case(NATIVE).refusal and not row.case(NATIVE).samples
    assert {peer.source for peer in row.peers} == {"rows of the native archive"}
    assert all(peer.source_bytes == row.native_bytes for peer in row.peers)
    if can_measure_memory():
        assert lossy.save_peak_bytes is not None and lossy.save_transient_bytes
        assert control.restore_peak_bytes is not None and control.restore_transient_bytes
        assert control.save_peak_bytes is None and control.save_transient_bytes is None
    assert f'<td class="l">{NATIVE_ARCHIVE}</td>' in report_page([certificate])
    assert "DietGPU" in "\n".join(peers_table([certificate], tmp_path, tmp_path / "README.md"))


def test_the_page_stays_the_control_where_it_can_be(tiny_model: Path, tmp_path: Path) -> None:
    make_tokens(step_config(tmp_path, tiny_model, [], NATIVE))
    every = ["llama-state", NATIVE, NATIVE_ARCHIVE, "exact"]
    prepared = step_prepare.prepare(step_config(tmp_path, tiny_model, every, NATIVE))
    assert prepared["control"] == NATIVE and NATIVE_ARCHIVE not in prepared["files"]


@pytest.mark.skipif(not can_measure_memory(), reason="this system does not tell the peak of a process's memory")
def test_memory_of_an_offloaded_engine(tiny_model: Path, tmp_path: Path, offloaded: list[int]) -> None:
    with Engine(tiny_model, n_ctx=256, n_threads=1) as engine, engine.session() as session:
        session.prefill(np.arange(200) % 64)
        receipt = session.save(tmp_path / "b", "balanced")
        save_native_archive(session, tmp_path / "n")
    common: dict[str, Any] = {"model": tiny_model, "n_ctx": 256, "n_threads": 1, "n_gpu_layers": 99}
    fill = {"fill": tmp_path / "n", "fill_kind": NATIVE_ARCHIVE}
    own = {name: str(value) if isinstance(value, Path) else value for name, value in (common | fill).items()}
    own |= {"action": "restore", "kind": "balanced", "path": str(tmp_path / "b")}
    assert archive_memory._measure(own | {"type_k": "f16", "type_v": "f16", "swa_full": False}).transient_bytes > 0
    assert offloaded == [99]
    restored = measure_memory(action="restore", kind="balanced", path=tmp_path / "b", **common, **fill)
    saved = measure_memory(action="save", kind="balanced", path=tmp_path / "again", **common, **fill)
    assert restored.transient_bytes > 0 and saved.transient_bytes == receipt.transient_bytes
    assert (tmp_path / "again").read_bytes() == (tmp_path / "b").read_bytes()  # the cache it was filled with is that


def test_native_archive_of_a_window(dummy_model: Callable[[str], Path], tmp_path: Path) -> None:
    """A sliding window has no native pages on any backend; its archive holds fewer tokens of some layers."""
    model = dummy_model("gemma3")
    every = ["llama-state", NATIVE, NATIVE_ARCHIVE, "exact"]
    make_tokens(step_config(tmp_path, model, [], NATIVE, 700))
    prepared = step_prepare.prepare(step_config(tmp_path, model, every, NATIVE, 700))
    assert prepared["control"] == NATIVE_ARCHIVE and prepared["memory"] == "iswa"
    n_first = {plane.first_token for plane in native_archive_planes(tmp_path / "native-archive.saved")}
    assert len(n_first) == 2 and 0 in n_first
    facts = prepared["files"][NATIVE_ARCHIVE]
    assert 0 < prepared["native_bytes"] == 2 * prepared["n_values"] < facts["file_bytes"]
    config = step_config(tmp_path, model, [case for case in every if case != NATIVE], NATIVE_ARCHIVE, 700)
    quality = measure_quality(config, prepared["greedy"])
    assert quality[NATIVE_ARCHIVE]["kl_max_nats"] == 0 and quality[NATIVE_ARCHIVE]["free_agreement"] == 1
    peers = {peer["name"]: peer for peer in measure_peers(config)["peers"]}
    assert peers["zstd -1"]["source_bytes"] == prepared["native_bytes"]
    assert "all tokens of every layer" in peers["LMCache CacheGen"]["note"]


@pytest.mark.parametrize(
    ("body", "components", "accelerator", "driver", "backend"),
    [
        (CARD, {"CUDA0"}, "A Card", "580.1", "CUDA"),
        (f"{CARD}; {CARD}", {"CUDA0"}, "A Card", "580.1", "CUDA"),
        (f"{CARD}; {CARD}", {"CUDA0", "CUDA1"}, "2 x A Card", "580.1", "CUDA"),
        (f"{CARD}; echo 'B Card, 580.1'", {"CUDA0"}, "A Card and B Card", "580.1", "CUDA"),
        (CARD, {"CPU", "CUDA0"}, "A Card", "580.1", "CPU+CUDA"),
        (CARD, {"CPU"}, "", "", "CPU"),
        (CARD, set(), "", "", "CPU"),
        (CARD, {"Vulkan0"}, "unknown", "unknown", "Vulkan"),
        ("exit 9", {"CUDA0"}, "unknown", "unknown", "CUDA"),
        ("echo no devices", {"CUDA0"}, "unknown", "unknown", "CUDA"),
        ("", {"CUDA0"}, "unknown", "unknown", "CUDA"),
    ],
)
def test_what_holds_the_cache(
    nvidia_smi: Tool, tmp_path: Path, body: str, components: set[str], accelerator: str, driver: str, backend: str
) -> None:
    if body:
        nvidia_smi(body)
    hardware = Hardware.here(tmp_path, can_offload=True).of_cache(components)
    assert (hardware.accelerator, hardware.driver, hardware.backend) == (accelerator, driver, backend)
    assert hardware.is_accelerated == (backend != "CPU")


def test_no_tool_is_asked_without_offloading(nvidia_smi: Tool, tmp_path: Path) -> None:
    nvidia_smi(f'touch "{tmp_path}/asked"; {CARD}')
    assert Hardware.here(tmp_path).accelerator == "" and not (tmp_path / "asked").exists()


def committed(root: Path) -> list[Path]:
    return [path for path in (root / "docs/certificates").glob("*.json") if path.name != "schema.json"]


def test_older_certificates_keep_their_bytes(root: Path, tmp_path: Path) -> None:
    """Fields that came later are not in them, and stay out when they are superseded."""
    paths = committed(root)
    assert paths
    for path in paths:
        assert encode_certificate(read_certificate(path)) == path.read_bytes()
    older = read_certificate(paths[0])
    write_certificate(msgspec.structs.replace(older, superseded_by=None), tmp_path)
    publish(older, tmp_path)
    found, problems = read_all(tmp_path)
    assert problems == contradictions(found) == [] and len(found) == 2


def test_an_accelerator_is_named(root: Path, tmp_path: Path) -> None:
    """In file name, evidence, tables and page, and the certificate holds."""
    older = read_certificate(committed(root)[0])
    card = msgspec.structs.replace(older.hardware, accelerator="A Card", driver="580.1").of_cache({"CUDA0"})
    workload = msgspec.structs.replace(older.workload, n_gpu_layers=99)
    made = msgspec.structs.replace(older, id="of-a-card", hardware=card, workload=workload, supersedes=None)
    write_certificate(seal(made), tmp_path)
    certificate = read_certificate(tmp_path / "of-a-card.json")
    verify_certificate(certificate)
    assert certificate.workload.n_gpu_layers == 99 and certificate.subject != older.subject
    assert certificate.hardware.key == f"a-card-{card.n_cores}c"
    assert "CUDA" in certificate.evidence and "CUDA" not in older.evidence
    jsonschema.validate(
        json.loads((tmp_path / "of-a-card.json").read_text()),
        json.loads((root / "docs/certificates/schema.json").read_text()),
        cls=jsonschema.Draft202012Validator,
    )
    document = tmp_path / "README.md"
    summary = "\n".join(summary_table([older, certificate], tmp_path, document))
    assert "A Card (CUDA)" in summary and f"{older.hardware.cpu}, " in summary
    rows = "\n".join(rows_table([certificate], tmp_path, document))
    assert "on A Card, cache in the memory of CUDA, driver 580.1" in rows
    assert "A Card (CUDA)" in report_page([certificate])


def copy_of_package(folder: Path) -> Path:
    source = Path(llama_cachegen.__file__).parent
    target = folder / "python" / "llama_cachegen"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.so", "__pycache__", "lib"))
    return target


def test_commit_of_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = copy_of_package(tmp_path)
    monkeypatch.delenv(COMMIT_VARIABLE, raising=False)
    nameless = Software.here(tmp_path)
    assert nameless.commit == "" and not nameless.is_clean
    monkeypatch.setenv(COMMIT_VARIABLE, COMMIT)
    named = Software.here(tmp_path)
    assert named.commit == COMMIT and named.is_clean
    (package / "engine.py").write_text("# another\n")
    assert Software.here(tmp_path).commit == COMMIT and not Software.here(tmp_path).is_clean
    for wrong in ("main", COMMIT[:12], COMMIT.upper()):
        monkeypatch.setenv(COMMIT_VARIABLE, wrong)
        with pytest.raises(QualifyError, match="the 40 hex digits of the commit"):
            Software.here(tmp_path)


def test_a_repository_knows_its_own_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_of_package(tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "a"], check=True)
    monkeypatch.setenv(COMMIT_VARIABLE, COMMIT)
    software = Software.here(tmp_path)
    assert software.commit not in ("", COMMIT) and software.is_clean


def test_a_run_that_may_offload(tmp_path: Path, nvidia_smi: Tool, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """--gpu-layers with a library that has no accelerator: the cache is in host memory, and so says the certificate."""
    nvidia_smi(CARD)
    monkeypatch.setenv(COMMIT_VARIABLE, COMMIT)
    workload = str(write_workload(tmp_path))
    arguments = ("--quick", "--work", "work", "--out", "out", "--gpu-layers", "99")
    done = qualify(tmp_path, "--workload", workload, *arguments)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "out").glob("*.json")
    certificate = read_certificate(path)
    verify_certificate(certificate)
    assert certificate.workload.name == "tiny" and certificate.workload.n_gpu_layers == 99
    assert certificate.rows[0].component_backends == ["CPU"] and certificate.rows[0].control == NATIVE
    hardware = certificate.hardware
    assert (hardware.backend, hardware.accelerator, hardware.driver) == ("CPU", "", "")
    assert certificate.software.commit == COMMIT and not certificate.software.is_clean
    case = certificate.rows[0].case("balanced")
    assert case.restore_transient_bytes and case.save_transient_bytes
    assert certificate.rows[0].case("llama-state").restore_transient_bytes is None
    plain = json.loads(path.read_text())
    schema = json.loads((root / "docs/certificates/schema.json").read_text())
    jsonschema.validate(plain, schema, cls=jsonschema.Draft202012Validator)
    assert qualify(tmp_path, "--workload", workload, *arguments[:-1], "-1").returncode == 2
