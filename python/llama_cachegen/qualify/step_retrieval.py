"""Tasks whose answer stands in a long prompt, made here from the workload's own text: no data set.

needle: a sentence with a number among the text, at several depths. key-value: a list of names and their codes after
the text, asked for at several places of the list. A task is solved if the greedy answer begins with what was asked
for. What the model does not solve on the cache it evaluated itself tells nothing about a restore, and is counted apart.
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
_N_PAIRS = 16
_TOWNS = ("Lisbon", "Oslo", "Vienna", "Dublin", "Ankara", "Quito", "Hanoi", "Accra")
_WORDS = (
    "amber", "basil", "cedar", "delta", "ember", "flint", "grove", "hazel", "ivory", "jasper", "karma", "lemon",
    "maple", "nickel", "ocean", "pearl", "quartz", "raven", "silver", "tulip", "umber", "velvet", "willow",
    "yarrow", "zephyr",
)  # fmt: skip


def tasks_of(kind: str, text: str, n_tasks: int, n_characters: int) -> Iterator[tuple[str, str, str]]:
    """(text before, question, answer) of each task, about n_characters long; the same ones every time."""
    rng = random.Random(f"{_SEED} {kind}")
    for i in range(n_tasks):
        if kind == "needle":
            answer = str(rng.randrange(10_000, 100_000))
            town = _TOWNS[i % len(_TOWNS)]
            at = round((i + 0.5) / n_tasks * n_characters)
            before, after = text[:at], text[at:n_characters]
            fact = f"The secret number of {town} is {answer}."
            yield f"{before}\n\n{fact}\n\n{after}\n\n", f"The secret number of {town} is", answer
        else:
            names = rng.sample([f"{first} {second}" for first in _WORDS for second in _WORDS], _N_PAIRS)
            codes = rng.sample(_WORDS, _N_PAIRS)
            lines = [f"The code of {name} is {code}." for name, code in zip(names, codes, strict=True)]
            at = round((i + 0.5) / n_tasks * (_N_PAIRS - 1))
            yield f"{text[:n_characters]}\n\n" + "\n".join(lines) + "\n", f"The code of {names[at]} is", codes[at]


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
