"""A certificate made by the harness on a tiny model of random weights, and documents to hold against it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOML = """
name = "tiny"
description = "A tiny model of random weights"
model = "shape:qwen3-tiny"
model_sha256 = ""
texts = []
n_prompt_tokens = 320
n_threads = 1
rows = ["f16/f16"]
profiles = ["balanced", "exact"]
required_profiles = ["balanced"]

[repeats]
processes = 3
warm_rounds = 5
cold_rounds = 1
save_rounds = 1
decode_steps = 7
peer_rounds = 1

[steps]
forced = 48
forced_first = 16
free = 16
retrieval_tokens = 0
retrieval_tasks = 0

[thresholds]
size_of_native_max = 1.0
warm_ttft_of_control_max = 1000.0
cold_ttft_of_control_max = 1000.0
ttft_of_recompute_max = 1000.0
decode_p99_of_control_max = 1000.0
save_of_llama_state_max = 1000.0
encode_of_recompute_max = 1000.0
restore_memory_over_file_bytes_max = 67108864
save_memory_bytes_max = 67108864
agreement_first_min = 0.0
agreement_min = 0.0
kl_mean_nats_max = 1000.0
perplexity_change_max = 1000.0
retrieval_lost_max = 0
spread_max = 1000.0
others_cores_max = 1000.0
harness_cost_max = 0.5
cold_resident_percent_max = 100.0

[quick]
n_prompt_tokens = 96
rows = ["f16/f16"]
profiles = ["balanced"]

[quick.repeats]
processes = 1
warm_rounds = 1
cold_rounds = 1
save_rounds = 1
decode_steps = 1
peer_rounds = 1

[quick.steps]
forced = 16
forced_first = 8
free = 8
retrieval_tokens = 0
retrieval_tasks = 0
"""


def write_workload(folder: Path, *changes: tuple[str, str]) -> Path:
    """The tiny workload, each (old, new) of the changes put into it once."""
    text = TOML
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    path = folder / "tiny.toml"
    path.write_text(text)
    return path


def qualify(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`llama-cachegen qualify` in a folder of its own."""
    command = [sys.executable, "-m", "llama_cachegen", "qualify", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
