"""Answers given on the command line, made for the question they meet."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from stepwell.cli import asking, consoles, questions
from stepwell.cli.expected import check_answer, shape_of
from stepwell.cli.failures import tell
from stepwell.cli.following import Answering
from stepwell.cli.json_texts import parsed_json
from stepwell.cli.plan_owners import warning_about
from stepwell.cli.questions import LATER, Answer, Given, Question
from stepwell.cli.remedies import Unusable
from stepwell.cli.safe_text import one_line


@dataclass(frozen=True, slots=True)
class Wish:
    """What the options say; at most one of them may say something."""

    approve: bool = False
    revise: str | None = None
    edit: Path | None = None
    reject: str | None = None
    answer: str | None = None

    def __post_init__(self) -> None:
        if len(self._said) > 1:
            raise Unusable(f"{' and '.join(self._said)} exclude each other")

    @property
    def given(self) -> bool:
        return bool(self._said)

    @property
    def _said(self) -> list[str]:
        options = {
            "--approve": self.approve or None,
            "--revise": self.revise,
            "--edit": self.edit,
            "--reject": self.reject,
            "--answer": self.answer,
        }
        return [name for name, value in options.items() if value is not None]

    def for_question(self, question: Question) -> Given:
        """The answer, in the shape that this kind of question takes."""
        if self.answer is not None:
            return _answered(question, self.answer)
        if self.approve:
            return _approved(question)
        if self.reject is not None:
            return _rejected(question, self.reject)
        if question.kind != "plan":
            raise Unusable(f"{question.request_id} is no plan, so it can't be {'edited' if self.edit else 'revised'}")
        try:
            return questions.revise(self.revise or "") if self.edit is None else _edited(self.edit, question)
        except ValueError as error:
            raise Unusable(str(error)) from error


def answering(wish: Wish, *, echoes: bool = True) -> Answering:
    """The wish, or the person at the terminal."""
    return wish.for_question if wish.given else asking.Person(consoles.watching(), echoes=echoes)


def once(ask: Answering, request_ids: Collection[str]) -> Answering:
    """An answer is meant for what was waiting when it was given, and not for what the run asks next."""

    def answer(question: Question) -> Answer:
        return ask(question) if question.request_id in request_ids else LATER

    return answer


def _answered(question: Question, text: str) -> Given:
    shown = repr(one_line(text, 80))
    try:
        value = parsed_json(text)
    except ValueError as error:
        raise Unusable(
            f"--answer {shown} is no JSON ({error}); a text needs quotes inside quotes: '\"yes\"'"
        ) from error
    try:
        check_answer(question, value)
    except ValueError as error:
        raise Unusable(f"--answer {shown} does not fit; {error}") from error
    return Given(value, "answered")


def _approved(question: Question) -> Given:
    if question.kind in ("plan", "tool"):
        return questions.approve(question)
    if question.response_type == "bool":
        return Given(True, "approved")
    raise _needs_answer(question)


def _rejected(question: Question, reason: str) -> Given:
    if question.kind in ("plan", "tool"):
        return questions.reject(question, reason)
    if question.kind == "doubt":
        return questions.verdict("fail", reason=reason)
    if question.response_type == "bool":
        return Given(False, "rejected")
    raise _needs_answer(question)


def _needs_answer(question: Question) -> Unusable:
    return Unusable(f"{question.request_id} is no yes-or-no question; it takes --answer with {shape_of(question)}")


def _edited(file: Path, question: Question) -> Given:
    try:
        given = questions.approve_edited(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unusable(f"{file} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Unusable(f"{file} is not text in UTF-8") from error
    if warning := warning_about(given.value["edited_plan"], question):
        tell(f"warning: {warning}")
    return given
