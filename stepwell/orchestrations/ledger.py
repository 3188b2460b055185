"""The progress ledger: the manager's judgement after each turn, and how its reply is read.

A reply is either understood or refused with a sentence that tells the model what to mend. Reading is pure and raises
nothing but `LedgerProblem`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from stepwell.checkpointing.registry import register_type
from stepwell.orchestrations.lenient import objects_in
from stepwell.orchestrations.names import matched_name

ITEMS: Final = (
    "is_request_satisfied",
    "is_in_loop",
    "is_progress_being_made",
    "next_speaker",
    "instruction_or_question",
)
_QUESTIONS: Final = {
    "is_request_satisfied": "Is the request fully satisfied?",
    "is_in_loop": "Is the team repeating the same requests or replies?",
    "is_progress_being_made": "Is the team moving forward?",
    "next_speaker": "Who should speak next?",
    "instruction_or_question": "What would you tell or ask them?",
}
_VERDICTS: Final = ITEMS[:3]
_YES: Final = frozenset({"true", "yes", "y", "1", "1.0", "correct", "affirmative"})
_NO: Final = frozenset({"false", "no", "n", "0", "0.0", "not", "nope", "negative"})


class LedgerProblem(ValueError):
    """A reply that is no ledger; the text is written for the model."""


class MagenticProgressLedgerItem(BaseModel):
    """One answer, and the reason for it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    reason: str = ""
    answer: bool | str

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump()


class MagenticProgressLedger(BaseModel):
    """Five answers: is it done, is it going in circles, is it going forward, who is next, and what are they told."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    is_request_satisfied: MagenticProgressLedgerItem
    is_in_loop: MagenticProgressLedgerItem
    is_progress_being_made: MagenticProgressLedgerItem
    next_speaker: MagenticProgressLedgerItem
    instruction_or_question: MagenticProgressLedgerItem

    @field_validator(*_VERDICTS)
    @classmethod
    def _is_a_verdict(cls, item: MagenticProgressLedgerItem) -> MagenticProgressLedgerItem:
        answer = verdict(item.answer)
        return item if answer is item.answer else item.model_copy(update={"answer": answer})

    @model_validator(mode="before")
    @classmethod
    def _bare_answers_are_items(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {
            key: value if isinstance(value, Mapping | BaseModel) else {"answer": value} for key, value in data.items()
        }

    @property
    def satisfied(self) -> bool:
        return bool(self.is_request_satisfied.answer)

    @property
    def stalled(self) -> bool:
        """Did this round bring nothing?"""
        return bool(self.is_in_loop.answer) or not self.is_progress_being_made.answer

    @property
    def speaker(self) -> str:
        return str(self.next_speaker.answer)

    @property
    def instruction(self) -> str:
        return str(self.instruction_or_question.answer)

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MagenticProgressLedger:
        return cls.model_validate(data)


register_type(MagenticProgressLedgerItem, name="stepwell.MagenticProgressLedgerItem", immutable=True)
register_type(
    MagenticProgressLedger,
    name="stepwell.MagenticProgressLedger",
    # As one value: taken apart it would be six, in every round.
    encode=MagenticProgressLedger.to_dict,
    decode=MagenticProgressLedger.from_dict,
    immutable=True,
)


def ledger_schema(names: Sequence[str]) -> dict[str, Any]:
    """The JSON schema a ledger is asked for with: the reason comes first, so that it is thought of first."""
    answers: dict[str, dict[str, Any]] = {
        **{item: {"type": "boolean"} for item in _VERDICTS},
        "next_speaker": {"type": "string", "enum": list(names)},
        "instruction_or_question": {"type": "string"},
    }
    properties = {
        item: {
            "type": "object",
            "description": _QUESTIONS[item],
            "properties": {"reason": {"type": "string"}, "answer": answers[item]},
            "required": ["reason", "answer"],
            "additionalProperties": False,
        }
        for item in ITEMS
    }
    return {"type": "object", "properties": properties, "required": list(ITEMS), "additionalProperties": False}


def verdict(answer: Any) -> bool:
    """Yes or no, however it was written; `"false"` is no."""
    if isinstance(answer, bool):
        return answer
    words = re.findall(r"[a-z0-9.-]+", str(answer).casefold()) if isinstance(answer, str | int | float) else []
    said = [word.strip(".") for word in words]
    # "true or false" is the question repeated, and "yes, but not all of it" ends nothing.
    if said and said[0] in _YES and _NO.isdisjoint(said):
        return True
    if said and said[0] in _NO and _YES.isdisjoint([word for word in said if word != "or"][1:2]):
        return False
    raise ValueError(f"must be true or false, not {_shown(answer)}")


def parse_ledger(reply: str, names: Collection[str]) -> MagenticProgressLedger:
    """The ledger in a model's reply, its speaker one of `names`; `LedgerProblem` says what has to be mended."""
    found = _ledger_object(reply)
    answers: dict[str, dict[str, Any]] = {item: _unwrapped(found[item]) for item in ITEMS if item in found}
    missing = [item for item in _VERDICTS if item not in answers]
    if missing:
        raise LedgerProblem(f"The reply lacks {', '.join(missing)}.")
    problems: list[str] = []
    done = _says_yes(answers["is_request_satisfied"], problems)
    if not done:
        _settle_speaker(answers, names, problems)
        _settle_instruction(answers, names, problems)
    for item in ("next_speaker", "instruction_or_question"):
        # Nobody speaks after the end, so it does not matter what is written there.
        if done and not isinstance(answers.get(item, {}).get("answer"), str):
            answers[item] = {"answer": ""}
    try:
        ledger = MagenticProgressLedger.model_validate(answers)
    except ValidationError as error:
        problems += [_told(problem) for problem in error.errors(include_url=False)]
        raise _problem(problems) from error
    if problems:
        raise _problem(problems)
    return ledger


def _problem(problems: list[str]) -> LedgerProblem:
    return LedgerProblem(" ".join(dict.fromkeys(problems)))


def _ledger_object(reply: str) -> dict[str, Any]:
    """The object with most of the five items, the last one if several have as many: models correct themselves."""
    best: dict[str, Any] = {}
    for candidate in objects_in(reply):
        whole = _normalised(candidate)
        for item in (candidate,) if len(whole) == len(ITEMS) else _with_nested(candidate):
            known = whole if item is candidate else _normalised(item)
            if known and len(known) >= len(best):
                best = known
    if not best:
        problem = "The reply is empty." if not reply.strip() else "There is no complete JSON object in the reply."
        raise LedgerProblem(problem)
    return best


def _with_nested(candidate: dict[str, Any], depth: int = 3) -> list[dict[str, Any]]:
    inner = [value for value in candidate.values() if isinstance(value, dict)] if depth else []
    return [nested for value in inner for nested in _with_nested(value, depth - 1)] + [candidate]


def _normalised(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """The items of a ledger under their proper names: `isInLoop`, `Is In Loop` and `is-in-loop` are the same."""
    found = ((key if key in ITEMS else _SQUEEZED.get(_squeezed(key)), value) for key, value in candidate.items())
    return {item: value for item, value in found if item is not None}


def _squeezed(key: str) -> str:
    return re.sub(r"[^a-z]", "", key.casefold())


_SQUEEZED: Final = {_squeezed(item): item for item in ITEMS}


def _unwrapped(value: Any) -> dict[str, Any]:
    """An item as `reason` and `answer`: bare answers get no reason, answers inside answers are taken out."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        return {"answer": value}
    item = {key.casefold().strip(): inner for key, inner in value.items()}
    answer = item.get("answer", item.get("value"))
    while isinstance(answer, dict | list) and len(answer) >= 1:
        if isinstance(answer, list):
            if len(answer) != 1:
                break
            answer = answer[0]
        elif "answer" in answer or "value" in answer:
            item.setdefault("reason", answer.get("reason", ""))
            answer = answer.get("answer", answer.get("value"))
        else:
            break
    reason = item.get("reason", "")
    return {"answer": answer, "reason": reason if isinstance(reason, str) else str(reason)}


def _says_yes(item: Mapping[str, Any], problems: list[str]) -> bool:
    try:
        return verdict(item["answer"])
    except ValueError as error:
        problems.append(f"is_request_satisfied.answer {error}.")
        return False


def _settle_speaker(answers: dict[str, dict[str, Any]], names: Collection[str], problems: list[str]) -> None:
    item = answers.get("next_speaker", {"answer": None})
    written = item["answer"]
    name = matched_name(written, names) if isinstance(written, str) else None
    if name is None:
        problems.append(f"next_speaker.answer must be one of {', '.join(names)}, not {_shown(written)}.")
        name = ""
    answers["next_speaker"] = {**item, "answer": name}


def _settle_instruction(answers: dict[str, dict[str, Any]], names: Collection[str], problems: list[str]) -> None:
    item = answers.get("instruction_or_question", {"answer": None})
    if isinstance(item["answer"], str) and item["answer"].strip().casefold() in {name.casefold() for name in names}:
        problems.append("instruction_or_question.answer must say what they are to do, not who they are.")
    elif not isinstance(item["answer"], str) or not item["answer"].strip():
        problems.append(f"instruction_or_question.answer must be a text, not {_shown(item['answer'])}.")
        item = {**item, "answer": ""}
    answers["instruction_or_question"] = item


def _told(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"] if part not in ("bool", "str"))
    return f"{where}.answer {problem['msg'].removeprefix('Value error, ')}."


def _shown(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
