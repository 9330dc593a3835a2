"""Workloads: those that come with the package, and every declaration that is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from llama_cachegen.errors import WorkloadError
from llama_cachegen.qualify.workload import Row, load_workload, workload_names
from qualify_cases import write_workload

TYPED = {"f16/f16", "f32/f32", "q8_0/q8_0", "q8_0/f16", "q8_0/f32", "q4_0/f16", "q4_0/q4_0"}


@pytest.mark.parametrize("name", workload_names())
def test_shipped(name: str) -> None:
    workload = load_workload(name)
    assert workload.name == name
    assert set(workload.rows) >= TYPED | {"bf16/bf16", "q8_0/q4_0"}
    repeats, steps = workload.repeats, workload.steps
    assert repeats.processes >= 7 and repeats.processes * repeats.warm_rounds >= 100
    assert repeats.processes * repeats.warm_rounds * repeats.decode_steps >= 400
    assert steps.forced >= 512 and steps.forced_first == 64 and steps.free >= 256
    assert workload.made_quick().n_prompt_tokens == 1000
    assert workload.is_synthetic == (not workload.texts) == (steps.retrieval_tasks == 0)


def test_names() -> None:
    assert {"smollm2-7k", "gemma3-19k", "qwen3-0.6b-shape-19k"} <= set(workload_names())
    assert Row.parse("Q8_0/f16") == Row("q8_0", "f16")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("n_prompt_tokens = 320", "n_prompt_tokens = 0", "n_prompt_tokens is 0"),
        ("n_prompt_tokens = 320", "n_promt_tokens = 320", "unknown field `n_promt_tokens`"),
        ("n_prompt_tokens = 320", 'n_prompt_tokens = "320"', "Expected `int`, got `str`"),
        ('rows = ["f16/f16"]', 'rows = ["f16"]', "row 'f16'"),
        ('rows = ["f16/f16"]', 'rows = ["f16/q9"]', "'q9' is not a type of a KV cache"),
        ('rows = ["f16/f16"]', "rows = []", "rows is empty"),
        ('rows = ["f16/f16"]', 'rows = ["f16/f16", "F16/f16"]', "rows has one row twice"),
        ('profiles = ["balanced", "exact"]', 'profiles = ["tiny"]', "profiles has 'tiny'; choose from"),
        ('required_profiles = ["balanced"]', 'required_profiles = ["fine"]', "required_profiles"),
        ("forced_first = 16", "forced_first = 64", "steps.forced_first is not 1 to steps.forced"),
        ("n_threads = 1", "n_gpu_layers = -1", "n_gpu_layers is below 0"),
        ("warm_rounds = 5", "warm_rounds = 0", "repeats.warm_rounds is not above 0"),
        ("spread_max = 1000.0\n", "", "missing required field `spread_max`"),
        ("texts = []", 'texts = ["docstrings"]', "texts are needed for a model, and not for a shape"),
        ('model_sha256 = ""', 'model_sha256 = "beef"', "model_sha256 is not 64 hex digits"),
        ('name = "tiny"', 'name = "../tiny"', "name '../tiny' is not made of"),
        ("texts = []", "texts = [", "is not TOML"),
    ],
)
def test_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(WorkloadError, match=r"tiny\.toml|row ") as caught:
        load_workload(write_workload(tmp_path, (old, new)))
    assert words in str(caught.value)


def test_missing() -> None:
    with pytest.raises(WorkloadError, match=r"no-such: no such file and not one of: gemma3-19k"):
        load_workload("no-such")


def test_paths_stay_out_of_certificates(tmp_path: Path) -> None:
    changed = (
        ('model = "shape:qwen3-tiny"', f'model = "{tmp_path}/own.gguf"'),
        ("texts = []", f'texts = ["{tmp_path}/own.txt"]'),
    )
    workload = load_workload(write_workload(tmp_path, *changed)).without_paths()
    assert (workload.model, workload.texts) == ("own.gguf", ["own.txt"])
