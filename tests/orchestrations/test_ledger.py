"""Every malformed ledger is understood or asked for again; none crashes a run, none ends the task by mistake."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.orchestrations.ledger import ITEMS, LedgerProblem, MagenticProgressLedger, ledger_schema, parse_ledger
from tests.orchestrations.teams import DONE, FACTS, PLAN, TASK, ledger, team

NAMES = ("researcher", "writer", "data_analyst")
GOOD = json.loads(ledger("writer", "Write it."))


def with_item(item: str, value: Any) -> str:
    return json.dumps({**GOOD, item: value})


def answered(item: str, answer: Any) -> str:
    return with_item(item, {"reason": "r", "answer": answer})


def without(*items: str) -> str:
    return json.dumps({key: value for key, value in GOOD.items() if key not in items})


TEXT = json.dumps(GOOD)
PRETTY = json.dumps(GOOD, indent=2)

UNDERSTOOD = {
    "as asked for": TEXT,
    "pretty-printed": PRETTY,
    "in a fence": f"```json\n{PRETTY}\n```",
    "in a fence without a language": f"```\n{TEXT}\n```",
    "fence that never ends": f"```json\n{TEXT}",
    "prose before": f"Here is my assessment of the team:\n\n{TEXT}",
    "prose after": f"{TEXT}\n\nLet me know if you need more!",
    "prose with braces around": f"The {{ledger}} is {TEXT} and that {{is}} it.",
    "thinking aloud first": f"<think>Is it done? {{no}}, [not] yet.</think>{TEXT}",
    "single quotes": str(GOOD),
    "single quotes and an apostrophe": str(GOOD).replace("about is_in_loop", "it's not").replace('"', "'"),
    "Python booleans": TEXT.replace("true", "True").replace("false", "False"),
    "trailing commas": PRETTY.replace("\n  }", ",\n  }").replace("}\n}", "},\n}"),
    "no quotes around keys": TEXT.replace('"reason":', "reason:").replace('"answer":', "answer:"),
    "comments": PRETTY.replace('"is_in_loop"', '// the second\n"is_in_loop"'),
    "a brace inside a string": answered("is_in_loop", False).replace('"r"', '"uses } and { and ] inside"'),
    "a fence inside a string": answered("is_in_loop", False).replace('"r"', '"```json {}```"'),
    "unescaped quotes inside a string": TEXT.replace("about is_in_loop", 'they said "no" twice'),
    "line breaks inside a string": TEXT.replace("about is_in_loop", "one\ntwo"),
    "curly quotes": TEXT.replace('"answer": "writer"', "“answer”: “writer”"),
    "extra items": json.dumps({**GOOD, "confidence": 0.9, "notes": ["a", "b"]}),
    "no reasons": json.dumps({item: {"answer": GOOD[item]["answer"]} for item in ITEMS}),
    "bare answers": json.dumps({item: GOOD[item]["answer"] for item in ITEMS}),
    "string booleans": answered("is_request_satisfied", "false"),
    "capital string booleans": answered("is_request_satisfied", "False"),
    "yes and no": answered("is_progress_being_made", "Yes, clearly."),
    "not yet": answered("is_request_satisfied", "Not yet."),
    "no with a yes in it": answered("is_request_satisfied", "No, it is not yet correct."),
    "numeric booleans": answered("is_request_satisfied", 0),
    "numbers as strings": answered("is_progress_being_made", "1"),
    "float booleans": answered("is_progress_being_made", 1.0),
    "nested answers": answered("next_speaker", {"answer": "writer", "reason": "its turn"}),
    "nested values": answered("is_in_loop", {"value": False}),
    "an answer in a list": answered("next_speaker", ["writer"]),
    "inside another object": json.dumps({"progress_ledger": GOOD}),
    "inside a list": json.dumps([GOOD]),
    "camel case": json.dumps({"".join(w.title() for w in key.split("_")): value for key, value in GOOD.items()}),
    "capital keys": TEXT.replace('"answer"', '"Answer"').replace('"reason"', '"Reason"'),
    "padded speaker": answered("next_speaker", " writer \n"),
    "mis-cased speaker": answered("next_speaker", "WRITER"),
    "quoted speaker": answered("next_speaker", '"writer"'),
    "marked-up speaker": answered("next_speaker", "**Writer**"),
    "mentioned speaker": answered("next_speaker", "@writer"),
    "speaker with a full stop": answered("next_speaker", "Writer."),
    "speaker in a phrase": answered("next_speaker", "the writer agent"),
    "speaker cut short": answered("next_speaker", "wri"),
    "corrected afterwards": f"{answered('next_speaker', 'researcher')}\nWait, I meant:\n{TEXT}",
    "an example before it": f'For example {{"answer": true}}. Now: {TEXT}',
}

REFUSED = {
    "empty": "",
    "blank": " \n\t ",
    "prose only": "The writer should speak next, and the request is satisfied.",
    "true": "true",
    "a list of numbers": "[1, 2, 3]",
    "no ledger": '{"hello": "world"}',
    "an empty object": "{}",
    "cut off": TEXT[: len(TEXT) // 2],
    "cut off inside a word": TEXT[:-40],
    "cut off after the first item": TEXT[: TEXT.index('"is_in_loop"')],
    "only that it is satisfied": '{"is_request_satisfied": {"reason": "r", "answer": true}}',
    "no speaker": without("next_speaker"),
    "no instruction": without("instruction_or_question"),
    "no verdict": without("is_request_satisfied"),
    "two missing": without("is_in_loop", "is_progress_being_made"),
    "empty instruction": answered("instruction_or_question", " "),
    "number for an instruction": answered("instruction_or_question", 7),
    "a name for an instruction": answered("instruction_or_question", "Researcher"),
    "null verdict": answered("is_request_satisfied", None),
    "unclear verdict": answered("is_request_satisfied", "maybe"),
    "number that is no verdict": answered("is_request_satisfied", 2),
    "negative verdict": answered("is_request_satisfied", -1),
    "template repeated": answered("is_request_satisfied", "true/false"),
    "template in words": answered("is_request_satisfied", "true or false"),
    "template with a bar": answered("is_request_satisfied", "false | true"),
    "yes and no at once": answered("is_request_satisfied", "yes/no"),
    "yes with a but": answered("is_request_satisfied", "Yes, but it is not finished"),
    "list for a verdict": answered("is_request_satisfied", [True, False]),
    "object for a verdict": answered("is_request_satisfied", {"done": True}),
    "list for an item": with_item("is_in_loop", [False, "because"]),
    "unknown speaker": answered("next_speaker", "the designer"),
    "two speakers": answered("next_speaker", "researcher and writer"),
    "list of speakers": answered("next_speaker", ["researcher", "writer"]),
    "empty speaker": answered("next_speaker", ""),
    "null speaker": answered("next_speaker", None),
    "number for a speaker": answered("next_speaker", 1),
    "brackets without end": "[" * 5000,
    "braces without end": '{"a":' * 5000,
}


@pytest.mark.parametrize("reply", [pytest.param(reply, id=name) for name, reply in UNDERSTOOD.items()])
def test_a_reply_is_understood(reply: str) -> None:
    found = parse_ledger(reply, NAMES)

    assert not found.satisfied
    assert not found.stalled
    assert found.speaker == "writer"
    assert found.instruction == "Write it."


@pytest.mark.parametrize("reply", [pytest.param(reply, id=name) for name, reply in REFUSED.items()])
def test_a_reply_is_refused_with_a_sentence_for_the_model(reply: str) -> None:
    with pytest.raises(LedgerProblem) as refused:
        parse_ledger(reply, NAMES)

    assert str(refused.value).endswith(".")


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        pytest.param(REFUSED["unknown speaker"], "researcher, writer, data_analyst", id="who is on the team"),
        pytest.param(REFUSED["unknown speaker"], "'the designer'", id="who was named instead"),
        pytest.param(REFUSED["no verdict"], "is_request_satisfied", id="what is missing"),
        pytest.param(REFUSED["unclear verdict"], "true or false, not 'maybe'", id="what was expected"),
    ],
)
def test_the_refusal_names(reply: str, named: str) -> None:
    with pytest.raises(LedgerProblem, match=named):
        parse_ledger(reply, NAMES)


@pytest.mark.parametrize("answer", [True, "true", "True", "yes", "YES!", 1, "1"])
def test_satisfied_however_it_is_written(answer: Any) -> None:
    assert parse_ledger(answered("is_request_satisfied", answer), NAMES).satisfied


@pytest.mark.parametrize("speaker", ["", "nobody", None, 3])
def test_when_it_is_done_it_does_not_matter_who_is_next(speaker: Any) -> None:
    done = {**GOOD, "is_request_satisfied": {"answer": True}, "next_speaker": {"answer": speaker}}

    assert parse_ledger(json.dumps(done), NAMES).satisfied


def test_a_ledger_survives_its_dict() -> None:
    found = parse_ledger(TEXT, NAMES)

    assert MagenticProgressLedger.from_dict(found.to_dict()) == found


def test_the_schema_asks_for_all_five_items() -> None:
    schema = ledger_schema(NAMES)

    assert schema["required"] == list(ITEMS) == list(schema["properties"])


@given(st.text(alphabet="{}[]\",:'` \\ntruefalsanwer_0", max_size=200))
@settings(max_examples=300, deadline=None)
def test_no_reply_crashes_the_reader(reply: str) -> None:
    with contextlib.suppress(LedgerProblem):
        found = parse_ledger(reply, NAMES)
        assert found == parse_ledger(json.dumps(found.to_dict()), NAMES)


@given(st.integers(0, len(PRETTY) - 2))
@settings(max_examples=150, deadline=None)
def test_a_reply_cut_off_anywhere_is_not_taken_for_the_whole(length: int) -> None:
    with pytest.raises(LedgerProblem):
        parse_ledger(PRETTY[:length], NAMES)


# --- in a run ---------------------------------------------------------------------------------------------------------

BOTH = {**UNDERSTOOD, **REFUSED}


@pytest.mark.parametrize("reply", [pytest.param(reply, id=name) for name, reply in BOTH.items()])
async def test_a_run_goes_on_after_it(reply: str) -> None:
    understood = reply in UNDERSTOOD.values()
    replies = [reply] if understood else [reply, ledger("writer", "Write it.")]
    crew = team(*replies, DONE)

    result = await crew.build().run(TASK)

    [output] = result.get_outputs()
    assert output.text == "The brief."
    assert [call.text for call in crew.writer.asked] == ["Write it."]
    assert crew.asked.count("ledger corrected") == (0 if understood else 1)
    crew.manager.check()


async def test_the_validation_error_is_part_of_the_question() -> None:
    crew = team(REFUSED["unknown speaker"], ledger("writer"), DONE)
    await crew.build().run(TASK)

    again = crew.manager.asked[3]
    assert "must be one of researcher, writer, not 'the designer'" in again.text
    assert again.messages[-2].text == REFUSED["unknown speaker"]


async def test_a_manager_that_never_makes_sense_is_replanned_and_then_stopped() -> None:
    rubbish = ["no", "no", "no"]
    crew = team(*rubbish, *[FACTS, PLAN, *rubbish] * 3, final="unused")

    result = await crew.build().run(TASK)

    [output] = result.get_outputs()
    assert "3 new plans in a row" in output.text
    assert output.additional_properties == {"limit": "barren_replans"}


async def test_a_manager_that_comes_to_its_senses_after_a_replan_goes_on() -> None:
    crew = team("no", "no", "no", FACTS, PLAN, ledger("writer"), DONE)

    result = await crew.build().run(TASK)

    [output] = result.get_outputs()
    assert output.text == "The brief."


def test_the_table_is_long_enough() -> None:
    assert len(BOTH) >= 40
