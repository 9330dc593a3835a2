"""The codec's own measurements: what they claim has to hold on prompts small enough for a test."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from llama_cachegen import Engine
from llama_cachegen.cli import cli
from llama_cachegen.codec import PROFILES, encode
from llama_cachegen.errors import CachegenError
from llama_cachegen.evaluate import QualityReport, SizeReport, get_text, measure_quality, measure_size
from llama_cachegen.evaluate import rivals as rivals_module
from llama_cachegen.evaluate.caches import PageCopy, copy_cache, n_native_bytes, n_values, native_rows
from llama_cachegen.evaluate.quality import NATIVE_OTHER_BATCHES, compare_logits
from llama_cachegen.evaluate.texts import TEXT_NAMES
from llama_cachegen.models import KNOWN_MODELS, resolve_model


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return resolve_model("smollm2")  # fetched by `make test`


# texts


@pytest.mark.parametrize("name", TEXT_NAMES)
def test_shipped_texts(name: str) -> None:
    text = get_text(name)
    assert len(text.text) > 40_000
    assert dataclasses.replace(text) == text.of(text.name, text.text, text.description)
    from llama_cachegen.evaluate import texts

    assert texts._TEXTS[name][0]() == text.text  # made again, it is the same


def test_texts_differ_and_suffice(smollm2: Path) -> None:
    texts = [get_text(name) for name in TEXT_NAMES]
    assert len({text.sha256 for text in texts}) == len(TEXT_NAMES) == 4
    with Engine(smollm2, n_ctx=256) as engine:
        for text in texts:
            assert len(engine.tokenize(text.text)) > 7680, text.name


def test_own_text(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_bytes(b"caf\xe9")
    text = get_text(path)
    assert (text.name, text.text) == ("own.txt", "caf�")
    with pytest.raises(CachegenError, match="reference, code, data, docstrings"):
        get_text(tmp_path / "none.txt")


# size


@pytest.fixture(scope="module")
def size_report(smollm2: Path) -> SizeReport:
    pytest.importorskip("blosc2")
    pytest.importorskip("lz4")
    pytest.importorskip("zstandard")
    return measure_size(smollm2, [get_text("reference")], n_tokens=288)


def test_sizes_are_sane(size_report: SizeReport) -> None:
    n = {(row.types, row.codec): row.n_bytes for row in size_report.rows}
    assert n["f16/f16", "native"] == 30 * 2 * 288 * 192 * 2
    assert n["q8_0/q8_0", "native"] == 30 * 2 * 288 * 192 * 34 // 32
    for row in size_report.rows:
        native = n[row.types, "native"]
        assert row.percent_of_native == pytest.approx(100 * row.n_bytes / native)
        assert row.bits_per_value == pytest.approx(8 * row.n_bytes / (30 * 2 * 288 * 192))
        if row.sections is not None:
            assert sum(row.sections.values()) == row.n_bytes and min(row.sections.values()) >= 0
            assert row.sections["words"] > 0
    for types in ("f16/f16", "q8_0/q8_0", "q4_0/q4_0"):
        assert n[types, "lmcache"] < n[types, "fine"] < n[types, "LCG1"]
        assert n[types, "balanced"] < n[types, "fine"]
        assert n[types, "exact"] < n[types, "native"]
        assert n[types, "exact"] < n[types, "zstd -19"]
        assert n[types, "lmcache"] < min(n[types, "LCG1"], n[types, "LCG2"], n[types, "LMCache"])


def test_size_report_as_text(size_report: SizeReport) -> None:
    assert size_report.goals() == []  # they are for 7,680 tokens
    page = size_report.markdown()
    for words in (
        KNOWN_MODELS["smollm2"].sha256,
        size_report.texts[0].sha256,
        "bits/value",
        "blosc2",
        size_report.setting.cpu,
    ):
        assert words in page
    record = json.loads(json.dumps(size_report.as_dict()))
    assert len(record["rows"]) == len(size_report.rows)
    assert "text" not in record["texts"][0]


def test_goals_are_judged(size_report: SizeReport) -> None:
    report = dataclasses.replace(size_report, n_tokens=7680)
    goals = dict(report.goals())
    assert len(goals) == 3 + 4
    worse = dataclasses.replace(
        report, rows=tuple(dataclasses.replace(row, percent_of_native=100.5) for row in report.rows)
    )
    reached = [is_reached for _, is_reached in worse.goals()]
    assert reached == [False] * 3 + [False, True] * 2  # not below native, and no worse than zstd


def test_missing_package(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(rivals_module.importlib, "import_module", refuse)
    with pytest.raises(CachegenError, match=r"lz4 is missing; install zstandard, lz4 and blosc2"):
        measure_size(smollm2, [get_text("reference")], n_tokens=64, byte_codecs=["lz4"])


def test_text_too_short(smollm2: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("Too short.")
    with pytest.raises(CachegenError, match=r"short\.txt has \d+ tokens"):
        measure_size(smollm2, [get_text(path)], n_tokens=64, byte_codecs=[])
    with pytest.raises(CachegenError, match=r"short\.txt has \d+ tokens"):
        measure_quality([smollm2], [get_text(path)], n_prompt_tokens=64, n_continuation_tokens=4)


# quality


@pytest.fixture(scope="module")
def quality_report(smollm2: Path) -> QualityReport:
    return measure_quality([smollm2], [get_text("reference")], n_prompt_tokens=96, n_continuation_tokens=16)


def test_quality_is_sane(quality_report: QualityReport) -> None:
    rows = {row.profile: row for row in quality_report.rows}
    assert list(rows) == [*PROFILES, NATIVE_OTHER_BATCHES]
    exact = rows["exact"].divergence
    assert abs(exact.kl_max_nats) < 1e-9 and exact.top1_agreement == 1
    assert exact.perplexity_restored == pytest.approx(exact.perplexity_original, rel=1e-12)
    assert 0 < rows["fine"].divergence.kl_mean_nats < rows["lmcache"].divergence.kl_mean_nats
    assert rows["lmcache"].bits_per_value < rows["fine"].bits_per_value < rows["exact"].bits_per_value < 16
    assert rows["balanced"].bits_per_value < rows["fine"].bits_per_value
    assert rows[NATIVE_OTHER_BATCHES].bits_per_value == 16
    assert [row.equals_lmcache for row in quality_report.rows] == [True, None, None, None, None]
    assert all(row.source == "page" for row in quality_report.rows)


def test_quality_report_as_text(quality_report: QualityReport) -> None:
    page = quality_report.markdown()
    for words in (KNOWN_MODELS["smollm2"].sha256, quality_report.texts[0].sha256, "equal", "KL p99"):
        assert words in page
    record = json.loads(json.dumps(quality_report.as_dict()))
    assert record["rows"][0]["divergence"]["kl_mean_nats"] > 0


def test_compare_logits() -> None:
    rng = np.random.default_rng(3)
    original = rng.normal(0, 3, (70, 50)).astype(np.float32)
    restored = original + rng.normal(0, 0.3, original.shape).astype(np.float32)
    targets = rng.integers(0, 50, 70).astype(np.int32)
    same = compare_logits(original, original + np.float32(1), targets)
    assert same.kl_max_nats < 1e-9 and same.top1_agreement == 1
    p = np.exp(original.astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    q = np.exp(restored.astype(np.float64))
    q /= q.sum(axis=1, keepdims=True)
    kl = (p * np.log(p / q)).sum(axis=1)
    found = compare_logits(original, restored, targets)
    assert found.kl_mean_nats == pytest.approx(kl.mean(), rel=1e-9)
    assert found.kl_p99_nats == pytest.approx(np.percentile(kl, 99), rel=1e-9)
    assert found.top1_agreement == (p.argmax(axis=1) == q.argmax(axis=1)).mean()
    assert found.perplexity_restored == pytest.approx(np.exp(-np.log(q[np.arange(70), targets]).mean()), rel=1e-9)


# copies of a cache


def test_page_copy(smollm2: Path) -> None:
    with Engine(smollm2, n_ctx=64, type_k="q8_0") as engine, engine.session() as session:
        session.prefill(engine.tokenize("The quick brown fox jumps over the lazy dog.")[:8])
        copy = copy_cache(session)
        assert isinstance(copy, PageCopy)
        assert n_values(copy.groups) == 30 * 2 * 8 * 192
        assert n_native_bytes(copy.groups) == 30 * 8 * 192 * (34 / 32 + 2)


@pytest.fixture(scope="module")
def gemma() -> Path:
    try:
        return resolve_model("gemma3-270m")
    except CachegenError:
        pytest.skip("gemma3-270m was not fetched")


def test_state_copy_of_a_sliding_window(gemma: Path) -> None:
    """The state's K and V lie where the copy says, and come back exactly after the window has slid."""
    from llama_cachegen.evaluate.caches import _copy_state
    from llama_cachegen.evaluate.quality import evaluate_all_logits

    with Engine(gemma, n_ctx=640) as engine:
        tokens = engine.tokenize(get_text("code").text)
        with engine.session() as session:
            session.prefill(tokens[:560])
            copy = _copy_state(session)
            original = evaluate_all_logits(session, tokens[560:576])
        assert copy.n_layers == 18
        full, window = copy.groups
        assert [plane.layer for plane in full[:3]] == [5, 11, 17] and len(window) == 30
        assert {len(native_rows(plane)) for plane in full} == {560}
        assert {len(native_rows(plane)) for plane in window} == {512}
        restored = copy.decode(copy.encode("exact", n_threads=2), n_threads=2)
        assert np.array_equal(restored.data, copy.data) and restored.data is not copy.data
        for planes in copy.groups:
            assert n_native_bytes([planes]) > len(encode(list(planes), "exact", n_layers=18))
        with engine.session() as session:
            restored.restore(session)
            assert session.n_tokens == 560
            assert np.array_equal(evaluate_all_logits(session, tokens[560:576]), original)
        # as in a page whose window is shorter: both groups together
        values = rivals_module.lmcache_values([*full, *window], 18)
        assert values[5, full[0].kind].shape == (560, 256) and values[0, full[0].kind].shape == (512, 256)
    with Engine(gemma, n_ctx=64, type_k="q8_0") as engine, engine.session() as session:
        session.prefill(tokens[:8])
        with pytest.raises(CachegenError, match="rotation of q8_0"):
            _copy_state(session)


# the command line


def test_commands(smollm2: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text(get_text("code").text[:4000])
    page = tmp_path / "size.md"
    options = ["--text", str(own), "--tokens", "64", "--types", "f16/q8_0", "--no-byte-codecs", "--markdown", str(page)]
    result = CliRunner().invoke(cli, ["codec", "size", "--json", *options])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert {row["types"] for row in record["rows"]} == {"f16/q8_0"}
    assert "own.txt" in page.read_text() and str(tmp_path) not in page.read_text()

    page = tmp_path / "quality.md"
    options = ["--text", str(own), "--tokens", "64", "--continuation", "8", "--markdown", str(page)]
    result = CliRunner().invoke(cli, ["codec", "quality", *options])
    assert result.exit_code == 0, result.output
    assert "Codec quality" in result.stdout and "| own.txt | exact |" in page.read_text()

    result = CliRunner().invoke(cli, ["codec", "size", "--types", "f16"])
    assert result.exit_code == 2 and "is not a pair" in result.output
