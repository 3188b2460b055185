"""Asking a person, at a terminal: is this plan good, may this tool be called, what became of this call.

What is shown was written by models and programs, so all of it is made safe first; what is read is sent back as JSON.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli import questions
from stepwell.cli.expected import check_answer
from stepwell.cli.json_texts import parsed_json
from stepwell.cli.plan_owners import warning_about
from stepwell.cli.plurals import number_of
from stepwell.cli.questions import LATER, Answer, Given, Question
from stepwell.cli.safe_text import one_line, safe
from stepwell.cli.values import text_of

if TYPE_CHECKING:
    from rich.console import Console

Read = Callable[[str], str]
"""Shows a prompt and returns the line that was typed; `EOFError` when there will be none."""

_YES = frozenset({"y", "yes"})
_NO = frozenset({"n", "no"})


def nobody(question: Question) -> Answer:
    """There is no person: every question waits."""
    return LATER


def approving(question: Question) -> Answer:
    """Yes to plans and tool calls, said beforehand; what is no yes-or-no question waits for a person."""
    return questions.approve(question) if question.kind in ("plan", "tool") else LATER


class Person:
    """Somebody at a terminal."""

    def __init__(self, console: Console, read: Read = input, *, echoes: bool = True) -> None:
        self._console = console
        self._read = read
        self._echoes = echoes
        """Say what was decided; not where that is said anyway, once it is recorded."""
        self._facts_told: dict[tuple[str, str], str] = {}
        """What this person was told to be known, by run and by who asked."""

    def __call__(self, question: Question) -> Answer:
        """Ask until there is an answer; an end of input means *later*."""
        ask = {"plan": self._plan, "tool": self._tool, "doubt": self._doubt, "other": self._other}[question.kind]
        self._console.print()
        try:
            answer = ask(question)
        except EOFError:
            self._say("")
            return LATER
        if isinstance(answer, Given) and self._echoes:
            self._say(f"{answer.words}.")
        return answer

    def hears(self, text: str) -> None:
        """Tell them what became of their answer."""
        self._say(text)

    # --- plans -------------------------------------------------------------------------------------------------------

    def _plan(self, question: Question) -> Answer:
        asker = question.run_id, question.asked_by
        for line in plan_lines(question.data, told=self._facts_told.get(asker, "")):
            self._say(line)
        self._facts_told[asker] = question.data.facts
        while True:
            match self._choice("[a]pprove  [e]dit  [r]evise  re[j]ect  [l]ater", "aerjl", other_words="revise"):
                case "a" | "y":
                    return questions.approve(question)
                case "e":
                    if (edited := self._edited(question)) is not None:
                        return edited
                case "r":
                    if feedback := self._read("what should be different? ").strip():
                        return questions.revise(feedback)
                case "j" | "n":
                    return questions.reject(question, self._read("why not? ").strip())
                case "l":
                    return LATER
                case wish:
                    return questions.revise(wish)

    def _edited(self, question: Question) -> Given | None:
        """The plan as the person leaves it; None if they leave it as it was, or empty, or don't want it after all."""
        as_it_was = text = safe(question.data.plan.text)
        while True:
            edited = self._changed(text)
            if edited is None or edited.strip() == as_it_was.strip():
                self._say("the plan is as it was")
                return None
            try:
                given = questions.approve_edited(edited)
            except ValueError as error:
                self._say(str(error))
                return None
            match self._said_of(given.value["edited_plan"], question):
                case "y":
                    return given
                case "n":
                    return None
            text = safe(given.value["edited_plan"])

    def _changed(self, text: str) -> str | None:
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        return self._edited_in(editor, text) if editor else self._edited_by_line(text)

    def _said_of(self, plan_text: str, question: Question) -> str:
        """Yes, no, or edit it again."""
        self._say(plan_text)
        if warning := warning_about(plan_text, question):
            self._say(f"But {warning}.")
        return self._choice("approve this plan? [y]es  [e]dit it again  [n]o", "yen")

    def _edited_in(self, editor: str, text: str) -> str | None:
        with tempfile.TemporaryDirectory(prefix="stepwell-plan-") as folder:
            path = Path(folder, "plan.txt")
            path.write_text(text + "\n", encoding="utf-8")
            try:
                subprocess.run([*shlex.split(editor), str(path)], check=True)
            except (OSError, ValueError, subprocess.CalledProcessError) as error:
                self._say(f"{editor} did not work: {error}")
                return None
            return path.read_text(encoding="utf-8")

    def _edited_by_line(self, text: str) -> str:
        self._say("For each step: Enter keeps it, a text replaces it, - removes it. Then add steps; Enter ends.")
        steps = []
        for line in text.splitlines():
            typed = self._read(f"{line}\n> ").strip()
            if typed != "-":
                steps.append(typed or line)
        while typed := self._read("one more (owner: what)> ").strip():
            steps.append(typed)
        return "\n".join(_numbered(steps))

    # --- the others --------------------------------------------------------------------------------------------------

    def _tool(self, question: Question) -> Answer:
        self._say(f"{question.asked_by} wants to call a tool:")
        self._say(f"  {tool_call(question)}")
        match self._choice("[y]es  [n]o  [l]ater", "ynl"):
            case "y":
                return questions.approve(question)
            case "n":
                return questions.reject(question, "")
        return LATER

    def _doubt(self, question: Question) -> Answer:
        for line in doubt_lines(question.data):
            self._say(line)
        match self._choice("it is [d]one  [r]etry it  it [f]ailed  [l]ater", "drfl"):
            case "d":
                return questions.verdict("done", result=self._json("what did it return, as JSON (Enter: nothing)? "))
            case "r":
                return questions.verdict("retry")
            case "f":
                return questions.verdict("fail", reason=self._read("why? ").strip())
        return LATER

    def _other(self, question: Question) -> Answer:
        self._say(f"{question.asked_by} asks:")
        self._say(f"  {text_of(question.data)}")
        while True:
            typed = self._read(f"answer ({one_line(hint_for(question.response_type))}; Enter: later) ").strip()
            if not typed:
                return LATER
            try:
                value = value_from_text(typed, question.response_type)
                check_answer(question, value)
            except ValueError as error:
                self._say(str(error))
            else:
                return Given(value, "answered")

    # --- reading and showing -----------------------------------------------------------------------------------------

    def _choice(self, prompt: str, letters: str, *, other_words: str = "") -> str:
        """One of the letters, or several words where those mean something too."""
        while True:
            typed = self._read(f"{prompt}: ").strip()
            first = typed.lower()[:1]
            if typed and " " in typed and other_words:
                return typed
            if first and first in letters + ("yn" if "a" in letters else ""):
                return first
            self._say(f"one of {', '.join(letters)}, please")

    def _json(self, prompt: str) -> Any:
        while True:
            typed = self._read(prompt).strip()
            if not typed:
                return None
            try:
                return parsed_json(typed)
            except ValueError as error:
                self._say(f"that is no JSON: {error}")

    def _say(self, text: str) -> None:
        self._console.print(safe(text), soft_wrap=not self._console.is_terminal)


# --- how questions read -----------------------------------------------------------------------------------------------


def plan_lines(review: Any, *, told: str = "") -> list[str]:
    """A plan review for people, without the facts if they are what was told before."""
    lines = []
    if review.is_stalled:
        lines.append("The team got nowhere" + ("." if review.before_replan else ", and has made another plan."))
    if review.facts and review.facts != told:
        lines += ["What is known:", *(f"  {line}" for line in review.facts.splitlines()), ""]
    lines += ["The plan:", *(f"  {line}" for line in review.plan.text.splitlines())]
    if review.reviews_left is not None:
        lines.append(f"It can be sent back {number_of(review.reviews_left, 'more time')}.")
    return lines


def doubt_lines(doubt: Any) -> list[str]:
    """A call in doubt for people."""
    lines = [f"A call was started at {doubt.started_at} and its end was never recorded:"]
    lines.append(f"  {doubt.name}  {doubt.request_preview}")
    if doubt.error:
        lines.append(f"  it raised {doubt.error}")
    lines.append("Find out whether it took effect before you answer.")
    return lines


def tool_call(question: Question) -> str:
    call = question.data.function_call
    return f"{call.name}({call.arguments})" if call is not None else text_of(question.data)


def summary_lines(question: Question) -> list[str]:
    """What is asked, whatever kind of question it is."""
    match question.kind:
        case "plan":
            return plan_lines(question.data)
        case "tool":
            return [f"{question.asked_by} wants to call {tool_call(question)}"]
        case "doubt":
            return doubt_lines(question.data)
        case "other":
            return [f"{question.asked_by} asks: {text_of(question.data)}"]


def hint_for(response_type: str) -> str:
    match response_type:
        case "str":
            return "a text"
        case "bool":
            return "yes or no"
        case name:
            return f"{name}, as JSON"


def value_from_text(typed: str, response_type: str) -> Any:
    """What a person typed, as JSON data: texts need no quotes, and yes is true."""
    if response_type == "str":
        return typed
    if response_type == "bool" and typed.lower() in _YES | _NO:
        return typed.lower() in _YES
    try:
        return parsed_json(typed)
    except ValueError as error:
        raise ValueError(f'that is no JSON ({error}); a text needs quotes, for example "yes"') from error


def _numbered(steps: list[str]) -> list[str]:
    bare = (step.partition(". ")[2] if step.partition(". ")[0].isdigit() else step for step in steps)
    return [f"{number}. {step}" for number, step in enumerate(bare, 1)]
