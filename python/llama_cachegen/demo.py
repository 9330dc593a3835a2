"""The demo: one process evaluates a long prompt and saves its KV cache, a new process restores it and answers.

Each process is `python -m llama_cachegen.demo ROLE CONFIG`, and writes JSON lines to its standard output: progress
records, then one result. The library part is `run`; the command line renders what it returns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

N_PROMPT_TOKENS = 4000
N_GREEDY_TOKENS = 64
N_ROUNDS = 5

# the demo's document: the chapter on compound statements, which Python ships for help("if")
_DOCUMENT_TOPIC = "compound"


def demo_text() -> str:
    """A long real document that comes with Python."""
    from pydoc_data.topics import topics

    return str(topics[_DOCUMENT_TOPIC])


def _emit(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def _engine(config: dict[str, Any], n_tokens: int) -> Any:
    from .engine import Engine

    return Engine(
        config["model"],
        n_ctx=n_tokens + N_GREEDY_TOKENS + 32,
        type_k=config["type_k"],
        type_v=config["type_v"],
        flash_attn=config["flash_attn"],
    )


def _save(config: dict[str, Any]) -> dict[str, Any]:
    from . import llama_state
    from .engine import Engine

    text = Path(config["text_path"]).read_text(encoding="utf-8", errors="replace")
    with Engine(config["model"], n_ctx=256) as small:
        tokens = small.tokenize(text)[: config["n_tokens"]].tolist()
    with _engine(config, len(tokens)) as engine, engine.session() as session:
        # The last token on its own, as after a restore: a batch of one and a batch of many sum in another order, and a
        # greedy run would tell. So the runs below differ only in where K and V came from.
        prefill = session.prefill(tokens[:-1], progress=lambda done, total: _emit({"progress": [done, total]}))
        last = session.prefill(tokens[-1:])
        _, first = session.first_token()
        # alternating, so that neither always finds the disk busy with the other's bytes
        saves, state_saves = [], []
        for _ in range(config["n_rounds"]):
            saves.append(session.save(config["page_path"]).as_dict())
            t_start = time.perf_counter()
            state_bytes = llama_state.save_file(session, config["state_path"])
            state_saves.append((time.perf_counter() - t_start) * 1000)
        greedy = list(session.generate(N_GREEDY_TOKENS, stop=False))
        return {
            "n_tokens": len(tokens),
            "recompute_ms": prefill.total_ms + last.total_ms + first.total_ms,
            "first_token_ms": first.total_ms,
            "greedy": greedy,
            "saves": saves,
            "state_bytes": state_bytes,
            "state_save_ms": state_saves,
            "prompt": tokens,
        }


def _restore(config: dict[str, Any]) -> dict[str, Any]:
    from . import llama_state

    prompt = json.loads(Path(config["prompt_path"]).read_text())
    result: dict[str, Any] = {"page": [], "state": []}
    with _engine(config, len(prompt)) as engine:
        # reading the identity digests the model file, once for an engine
        _ = engine.identity

        def page_round(keep_greedy: bool) -> None:
            with engine.session() as session:
                receipt = session.restore(config["page_path"], prompt)
                if not receipt.restored:
                    raise SystemExit(f"the page was not restored: {receipt.detail}")
                if session.pos_max != len(prompt) - 1:
                    raise SystemExit(f"llama.cpp holds positions up to {session.pos_max}, not {len(prompt) - 1}")
                _, first = session.first_token()
                result["page"].append({"restore": receipt.as_dict(), "first": first.as_dict()})
                if keep_greedy:
                    result["page_greedy"] = list(session.generate(N_GREEDY_TOKENS, stop=False))

        def state_round(keep_greedy: bool) -> None:
            with engine.session() as session:
                t_start = time.perf_counter()
                llama_state.load_file(session, config["state_path"])
                load_ms = (time.perf_counter() - t_start) * 1000
                _, first = session.first_token()
                result["state"].append({"load_ms": load_ms, "first": first.as_dict()})
                if keep_greedy:
                    result["state_greedy"] = list(session.generate(N_GREEDY_TOKENS, stop=False))

        for i in range(config["n_rounds"]):
            rounds = (page_round, state_round) if i % 2 == 0 else (state_round, page_round)
            for one_round in rounds:
                one_round(i == 0)
    return result


def _run_process(role: str, config: dict[str, Any], progress: Callable[[int, int], None] | None) -> dict[str, Any]:
    process = subprocess.Popen(
        [sys.executable, "-m", "llama_cachegen.demo", role, json.dumps(config)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    result: dict[str, Any] | None = None
    for line in process.stdout:
        record = json.loads(line)
        if "progress" in record and progress is not None:
            progress(*record["progress"])
        elif "result" in record:
            result = record["result"]
    status = process.wait()
    if status != 0 or result is None:
        raise RuntimeError(f"the {role} process ended with status {status}")
    return result


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def run(
    *,
    model: Path,
    text: Path | None = None,
    type_k: str = "f16",
    type_v: str = "f16",
    flash_attn: bool = True,
    n_tokens: int = N_PROMPT_TOKENS,
    n_rounds: int = N_ROUNDS,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Run both processes and gather their figures; times in ms, sizes in bytes.

    Raises:
        RuntimeError: one of the processes failed; it wrote why to standard error.
    """
    with tempfile.TemporaryDirectory(prefix="llama-cachegen-demo-") as directory:
        folder = Path(directory)
        if text is None:
            text = folder / "document.txt"
            text.write_text(demo_text(), encoding="utf-8")
        config = {
            "model": os.fspath(model),
            "text_path": os.fspath(text),
            "type_k": type_k,
            "type_v": type_v,
            "flash_attn": flash_attn,
            "n_tokens": n_tokens,
            "n_rounds": n_rounds,
            "page_path": os.fspath(folder / "prompt.page"),
            "state_path": os.fspath(folder / "prompt.state"),
            "prompt_path": os.fspath(folder / "prompt.json"),
        }
        saved = _run_process("save", config, progress)
        (folder / "prompt.json").write_text(json.dumps(saved["prompt"]))
        restored = _run_process("restore", config, None)

    greedy = saved["greedy"]

    def agreement(other: list[int]) -> int:
        return sum(a == b for a, b in zip(greedy, other, strict=True))

    page_rounds, state_rounds = restored["page"], restored["state"]
    return {
        "model": model.name,
        "n_prompt_tokens": saved["n_tokens"],
        "n_greedy_tokens": len(greedy),
        "n_rounds": n_rounds,
        "component_types": saved["saves"][0]["component_types"],
        "flash_attn": flash_attn,
        "recompute": {"total_ms": saved["recompute_ms"], "first_token_ms": saved["first_token_ms"]},
        "llama_state": {
            "bytes": saved["state_bytes"],
            "save_ms": _spread(saved["state_save_ms"]),
            "restore_ms": _spread([r["load_ms"] for r in state_rounds]),
            "first_token_ms": _spread([r["first"]["total_ms"] for r in state_rounds]),
            "restore_to_first_token_ms": _spread([r["load_ms"] + r["first"]["total_ms"] for r in state_rounds]),
            "agreement": agreement(restored["state_greedy"]),
        },
        "page": {
            "bytes": saved["saves"][0]["file_bytes"],
            "save_ms": _spread([s["total_ms"] for s in saved["saves"]]),
            "save_fsync_ms": _spread([s["fsync_ms"] for s in saved["saves"]]),
            "restore_ms": _spread([r["restore"]["total_ms"] for r in page_rounds]),
            "first_token_ms": _spread([r["first"]["total_ms"] for r in page_rounds]),
            "restore_to_first_token_ms": _spread(
                [r["restore"]["total_ms"] + r["first"]["total_ms"] for r in page_rounds]
            ),
            "first_round": page_rounds[0],
            "agreement": agreement(restored["page_greedy"]),
        },
    }


def main() -> None:
    """Entry of the two processes."""
    role, config = sys.argv[1], json.loads(sys.argv[2])
    _emit({"result": {"save": _save, "restore": _restore}[role](config)})


if __name__ == "__main__":
    main()
