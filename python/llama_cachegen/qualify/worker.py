"""The process of one step: `python -m llama_cachegen.qualify.worker CONFIG`, a JSON file; prints one JSON line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import CachegenError
from .step_config import StepConfig
from .step_peers import measure_peers
from .step_prepare import prepare
from .step_quality import measure_quality
from .step_retrieval import measure_retrieval
from .step_timing import measure_times
from .step_tokens import make_tokens

__all__ = ["STEPS"]


def _quality(config: StepConfig) -> dict[str, Any]:
    return measure_quality(config, json.loads((Path(config.folder) / "greedy.json").read_text()))


STEPS: dict[str, Callable[[StepConfig], dict[str, Any]]] = {
    "tokens": make_tokens,
    "prepare": prepare,
    "timing": measure_times,
    "quality": _quality,
    "retrieval": measure_retrieval,
    "peers": measure_peers,
}


def main() -> None:
    """Entry: the result, or the error's own words, as one line."""
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=StepConfig)
    try:
        record: dict[str, Any] = {"result": STEPS[config.step](config)}
    except (CachegenError, OSError) as error:
        record = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
