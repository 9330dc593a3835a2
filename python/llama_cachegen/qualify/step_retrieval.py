"""Tasks whose answer stands in a long prompt, made here from the workload's own text: no data set.

needle: a sentence with a number among the text, at several depths. key-value: a list of keys and numbers.
A task is solved if the greedy answer begins with the number. What the model does not solve on the cache it evaluated
itself tells nothing about a restore, and is counted apart.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine import Engine
from ..session import Session
from .cases import LLAMA, first_token, restore, save
from .step_config import StepConfig
from .step_tokens import join_texts

__all__ = ["KINDS", "measure_retrieval", "tasks_of"]

KINDS = ("needle", "key-value")
_N_ANSWER_TOKENS = 12
_SEED = 7
_TOWNS = ("Lisbon", "Oslo", "Vienna", "Dublin", "Ankara", "Quito", "Hanoi", "Accra")


def tasks_of(kind: str, text: str, n_tasks: int, n_characters: int) -> Iterator[tuple[str, str, str]]:
    """(text before, question, answer) of each task, about n_characters long; the same ones every time."""
    rng = random.Random(f"{_SEED} {kind}")
    for i in range(n_tasks):
        answer = str(rng.randrange(10_000, 100_000))
        if kind == "needle":
            town = _TOWNS[i % len(_TOWNS)]
            at = round((i + 0.5) / n_tasks * n_characters)
            before, after = text[:at], text[at:n_characters]
            fact = f"The secret number of {town} is {answer}."
            yield f"{before}\n\n{fact}\n\n{after}\n\n", f"The secret number of {town} is", answer
        else:
            n_lines = n_characters // 16
            lines = [f"key {rng.randrange(1000, 10_000)}: {rng.randrange(10_000, 100_000)}" for _ in range(n_lines)]
            at = round((i + 0.5) / n_tasks * (n_lines - 1))
            key = f"key {chr(ord('A') + i % 26)}{rng.randrange(100, 1000)}"
            lines[at] = f"{key}: {answer}"
            yield "\n".join(lines) + "\n", f"{key}:", answer


def _prompt_of(engine: Engine, config: StepConfig, text: str, kind: str, i: int) -> tuple[NDArray[np.int32], str, str]:
    """Tokens that fit, the question and the answer: shorter until they do."""
    n_characters = config.steps.retrieval_tokens * 5
    while True:
        before, question, answer = list(tasks_of(kind, text, config.steps.retrieval_tasks, n_characters))[i]
        tokens = engine.tokenize(before)
        if len(tokens) <= config.steps.retrieval_tokens:
            return tokens, question, answer
        n_characters = n_characters * 9 // 10


def _answer(session: Session, question: NDArray[np.int32], engine: Engine) -> str:
    session.prefill(question)
    return engine.detokenize(list(session.generate(_N_ANSWER_TOKENS)))


def measure_retrieval(config: StepConfig) -> dict[str, Any]:
    """For every case and kind: tasks, those solved with the evaluated cache, and those lost by the restore."""
    counts = {case: {kind: [0, 0, 0] for kind in KINDS} for case in config.cases}
    if config.steps.retrieval_tokens == 0:
        return {}
    text = join_texts(config.texts).text
    path = Path(config.folder) / "retrieval"
    with config.new_engine(n_ctx=config.steps.retrieval_tokens + 128) as engine:
        for kind in KINDS:
            for i in range(config.steps.retrieval_tasks):
                prompt, words, answer = _prompt_of(engine, config, text, kind, i)
                question = engine.tokenize(words, add_special=False)
                with engine.session() as session:
                    session.prefill(prompt[:-1])
                    for case in config.cases:
                        save(session, case, path.with_suffix(f".{case}"))
                    first_token(session, prompt)
                    is_solved = _answer(session, question, engine).strip().startswith(answer)
                for case in config.cases:
                    with engine.session() as session:
                        restore(session, case, path.with_suffix(f".{case}"), prompt)
                        first_token(session, prompt)
                        again = _answer(session, question, engine).strip().startswith(answer)
                    of_case = counts[case][kind]
                    of_case[0] += 1
                    of_case[1] += is_solved
                    of_case[2] += is_solved and not again
    for case in config.cases:
        path.with_suffix(f".{case}").unlink()
    assert LLAMA in config.cases
    return {
        case: [
            {"kind": kind, "n_tasks": n, "n_solved_evaluated": solved, "n_lost": lost}
            for kind, (n, solved, lost) in of_case.items()
        ]
        for case, of_case in counts.items()
    }
