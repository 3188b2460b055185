"""What the zero-latency model of the Magentic benchmark says: facts, plan, a ledger per round, the final answer."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import Figures, paragraphs, tenths

TASK = "Go round until you are told that it is done."
WORKERS = ("alpha", "beta")


def _ledger(speaker: str, *, done: bool) -> str:
    answers = {
        "is_request_satisfied": done,
        "is_in_loop": False,
        "is_progress_being_made": True,
        "next_speaker": speaker,
        "instruction_or_question": "Say the next thing.",
    }
    return json.dumps({item: {"reason": "It is as it is.", "answer": answer} for item, answer in answers.items()})


class Script:
    """The manager's replies and the workers' kilobytes, in order; when each worker was asked is kept."""

    def __init__(self, rounds: int) -> None:
        self._manager = self._replies(rounds)
        self._texts = iter(paragraphs(rounds))
        self.stamps: list[float] = []

    def _replies(self, rounds: int) -> Iterator[str]:
        yield "GIVEN: nothing much."
        yield "- alpha: speak\n- beta: speak"
        for number in range(rounds):
            yield _ledger(WORKERS[number % 2], done=False)
        yield _ledger(WORKERS[0], done=True)
        yield "It is done."

    def manager(self) -> str:
        return next(self._manager)

    def worker(self) -> str:
        self.stamps.append(time.perf_counter())
        return next(self._texts)

    def figures(self, seconds: float, rounds: int) -> Figures:
        assert len(self.stamps) == rounds, f"{len(self.stamps)} rounds of {rounds}"
        return {"ms": seconds * 1e3 / rounds, **tenths(self.stamps)}
