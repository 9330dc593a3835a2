"""Sessions whose cache lies on a device: archives beside the processor's, and failures that leave no trace.

Skipped where the library has no device backend; `scripts/qualify-cuda --wheels` runs it on a card.
"""

from __future__ import annotations

import filecmp
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cachegen import Engine, Outcome, Session, errors
from llama_cachegen.errors import ModelFetchError
from llama_cachegen.models import resolve_model
from test_session import PROMPT, check_context_untouched, greedy, make_engine, untouched_runs

ALL_LAYERS = 99
LONG = [int(t) for t in np.random.default_rng(9).integers(0, 64, 200)]
TYPES = [
    ("f16", "f16"),
    ("f32", "f32"),
    ("q8_0", "q8_0"),
    ("q8_0", "f16"),
    ("q8_0", "f32"),
    ("q4_0", "f16"),
    ("q4_0", "q4_0"),
]


def on_device(model: Path, n_gpu_layers: int = ALL_LAYERS, **options: Any) -> Engine:
    return make_engine(model, n_gpu_layers=n_gpu_layers, **options)


def backends(engine: Engine) -> list[str]:
    return [one.backend for one in engine.capabilities().archives]


@pytest.fixture(scope="module", autouse=True)
def device(tiny_model: Path) -> Iterator[str]:
    """The name of the backend that holds the cache."""
    with on_device(tiny_model) as engine:
        (name,) = set(backends(engine))
    if name == "CPU":
        pytest.skip("this library has no device backend, or there is no device")
    yield name


def save_all(session: Session, folder: Path, name: str, **options: Any) -> tuple[Path, Path]:
    exact, balanced = folder / f"{name}.exact", folder / f"{name}.balanced"
    session.save(exact, "exact", **options)
    session.save(balanced, "balanced", **options)
    return exact, balanced


def restored(engine: Engine, path: Path, tokens: list[int]) -> Session:
    session = engine.session()
    receipt = session.restore(path, tokens)
    assert receipt.outcome is Outcome.RESTORED, receipt.detail
    assert session.n_tokens == len(tokens)
    return session


def test_every_layer_is_read_and_written_where_it_lies(tiny_model: Path, device: str) -> None:
    with on_device(tiny_model) as engine:
        parts = engine.capabilities().archives
        assert parts and all(one.backend == device and one.can_import and one.can_export for one in parts)


@pytest.mark.parametrize("flash_attn", [True, False], ids=["rows", "transposed"])
@pytest.mark.parametrize(("type_k", "type_v"), TYPES)
def test_archives_and_cells_are_the_processors(
    tiny_model: Path, tmp_path: Path, type_k: str, type_v: str, flash_attn: bool
) -> None:
    if not flash_attn and type_v.startswith("q"):
        pytest.skip("llama.cpp has no quantised V without flash attention")
    options = {"type_k": type_k, "type_v": type_v, "flash_attn": flash_attn}
    with on_device(tiny_model, **options) as there, make_engine(tiny_model, **options) as here:
        session = there.session()
        session.prefill(LONG)
        exact, balanced = save_all(session, tmp_path, "device")
        # the very cells, on the processor, give the same files
        same = save_all(restored(here, exact, LONG), tmp_path, "host")
        assert filecmp.cmp(exact, same[0], shallow=False)
        assert filecmp.cmp(balanced, same[1], shallow=False)
        # and what comes out of a lossy archive is the same on both
        lossy = save_all(restored(there, balanced, LONG), tmp_path, "device-lossy")
        lossy_here = save_all(restored(here, balanced, LONG), tmp_path, "host-lossy")
        assert filecmp.cmp(lossy[0], lossy_here[0], shallow=False)
        assert not filecmp.cmp(lossy[0], exact, shallow=False)


def test_layers_on_both_sides(tiny_model: Path, tmp_path: Path) -> None:
    with on_device(tiny_model, n_gpu_layers=2) as split, make_engine(tiny_model) as here:
        assert len(set(backends(split))) == 2
        session = split.session()
        session.prefill(LONG)
        # an archive is made in one place
        with pytest.raises(errors.UnsupportedMemoryError):
            session.save(tmp_path / "refused", "exact")
        exact, _ = save_all(session, tmp_path, "split", host_staged=True)
        again = save_all(restored(split, exact, LONG), tmp_path, "again", host_staged=True)
        same = save_all(restored(here, exact, LONG), tmp_path, "host")
        assert filecmp.cmp(exact, again[0], shallow=False)
        assert filecmp.cmp(again[1], same[1], shallow=False)


def test_a_restored_session_answers_as_the_saved_one(tiny_model: Path, tmp_path: Path) -> None:
    with on_device(tiny_model) as engine:
        session = engine.session()
        session.prefill(PROMPT[:-1])
        session.save(tmp_path / "exact", "exact")
        session.prefill(PROMPT[-1:])
        evaluated = greedy(session)
        session.close()
        session = restored(engine, tmp_path / "exact", PROMPT[:-1])
        session.prefill(PROMPT[-1:])
        assert greedy(session)[0] == evaluated[0]


def test_a_prefix_of_an_archive(tiny_model: Path, tmp_path: Path) -> None:
    with on_device(tiny_model) as engine, make_engine(tiny_model) as here:
        session = engine.session()
        session.prefill(LONG)
        exact, _ = save_all(session, tmp_path, "whole")
        other = [*LONG[:70], (LONG[70] + 1) % 64, *LONG[71:]]
        files = []
        for name, one in (("there", engine), ("here", here)):
            part = one.session()
            assert part.restore(exact, other).outcome is Outcome.RESTORED
            assert part.n_tokens == 70
            files.append(save_all(part, tmp_path, name)[0])
        assert filecmp.cmp(*files, shallow=False)


@pytest.mark.parametrize("at", [0.2, 0.5, 0.9, 0.999])
def test_damage_leaves_the_context_as_it_was(tiny_model: Path, tmp_path: Path, at: float) -> None:
    options = {"n_gpu_layers": ALL_LAYERS}
    path = tmp_path / "damaged"
    with on_device(tiny_model) as engine, engine.session() as session:
        session.prefill(LONG)
        session.save(path, "balanced")
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 0x10
    path.write_bytes(data)

    def attempt(session: Session) -> None:
        with pytest.raises((errors.ArchiveImportError, errors.PageFileError)):
            session.restore(path)

    check_context_untouched(tiny_model, untouched_runs(tiny_model, **options), attempt, **options)


def test_another_prompt_is_a_miss(tiny_model: Path, tmp_path: Path) -> None:
    with on_device(tiny_model) as engine:
        session = engine.session()
        session.prefill(PROMPT)
        session.save(tmp_path / "exact", "exact")
        fresh = engine.session()
        receipt = fresh.restore(tmp_path / "exact", [(PROMPT[0] + 1) % 64, *PROMPT[1:]])
        assert receipt.outcome is Outcome.MISS and fresh.n_tokens == 0


def test_native_pages_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    with on_device(tiny_model) as engine, engine.session() as session:
        session.prefill(PROMPT)
        with pytest.raises(errors.UnsupportedMemoryError):
            session.save(tmp_path / "page")
        assert not (tmp_path / "page").exists()


def test_a_real_model(tmp_path: Path) -> None:
    """SmolLM2's cache through Python on a device: the same next tokens as before it was saved."""
    try:
        model = resolve_model("smollm2")
    except ModelFetchError:
        pytest.skip("smollm2 was not fetched")
    text = Path(np.__file__).with_name("__init__.py").read_text(encoding="utf-8")
    with Engine(model, n_ctx=4096, n_gpu_layers=ALL_LAYERS) as engine:
        tokens = engine.tokenize(text)[:2000]
        session = engine.session()
        session.prefill(tokens[:-1])
        receipts = {name: session.save(tmp_path / name, name) for name in ("exact", "balanced")}
        session.prefill(tokens[-1:])
        evaluated = list(session.generate(64, stop=False))
        session.close()
        agreement = {}
        for name, receipt in receipts.items():
            assert receipt.file_bytes == (tmp_path / name).stat().st_size
            with engine.session() as again:
                assert again.restore(tmp_path / name, tokens).n_tokens == len(tokens) - 1
                again.prefill(tokens[-1:])
                own = list(again.generate(64, stop=False))
                agreement[name] = sum(a == b for a, b in zip(evaluated, own, strict=True))
        print(f"{len(tokens)} tokens, of 64 greedy tokens the same: {agreement}")
        assert agreement["exact"] == 64
