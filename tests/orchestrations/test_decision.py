"""The decision over all combinations, and no way past a limit."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.orchestrations.decision import (
    BARREN_REPLANS,
    Counters,
    Decision,
    Finish,
    Limit,
    Limits,
    Replan,
    Speak,
    Unreadable,
    decide,
    may_go_on,
)
from stepwell.orchestrations.ledger import MagenticProgressLedger

NAMES = ("researcher", "writer")


def judged(
    *, satisfied: bool = False, loop: bool = False, progress: bool = True, speaker: str = "writer"
) -> MagenticProgressLedger:
    return MagenticProgressLedger.model_validate(
        {
            "is_request_satisfied": satisfied,
            "is_in_loop": loop,
            "is_progress_being_made": progress,
            "next_speaker": speaker,
            "instruction_or_question": "Go on.",
        }
    )


COMBINATIONS = [
    pytest.param(satisfied, loop, progress, speaker, stalls, rounds, resets, id=f"{i}")
    for i, (satisfied, loop, progress, speaker, stalls, rounds, resets) in enumerate(
        itertools.product(
            (False, True), (False, True), (False, True), ("writer", "nobody"), (0, 1, 2, 3), (0, 4, 5), (0, 1, 2)
        )
    )
]


@pytest.mark.parametrize(("satisfied", "loop", "progress", "speaker", "stalls", "rounds", "resets"), COMBINATIONS)
def test_what_follows_from_each_combination(
    satisfied: bool, loop: bool, progress: bool, speaker: str, stalls: int, rounds: int, resets: int
) -> None:
    limits = Limits(max_stall_count=2, max_round_count=5, max_reset_count=2)
    counters = Counters(rounds=rounds, stalls=stalls, resets=resets)
    ledger = judged(satisfied=satisfied, loop=loop, progress=progress, speaker=speaker)

    decision = decide(ledger, counters, limits, NAMES)

    now = stalls + 1 if loop or not progress else max(0, stalls - 1)
    expected: Decision
    if satisfied:
        expected = Finish()
    elif rounds >= 5:
        expected = Limit("max_round_count", 5)
    elif speaker == "nobody" or now > 2:
        assert isinstance(decision, Replan | Limit)
        expected = Limit("max_reset_count", 2) if resets >= 2 else decision
        if isinstance(decision, Replan):
            assert decision.counters == Counters(rounds=rounds, stalls=0, resets=resets + 1, barren=1)
    else:
        expected = Speak("writer", "Go on.", Counters(rounds=rounds + 1, stalls=now, resets=resets))
    assert decision == expected


@pytest.mark.parametrize("resets", [0, 1, 2])
def test_an_unreadable_ledger_replans_until_the_limit(resets: int) -> None:
    decision = decide(Unreadable("no JSON"), Counters(resets=resets), Limits(max_reset_count=2), NAMES)

    assert isinstance(decision, Limit if resets >= 2 else Replan)


def test_replans_that_let_nobody_speak_come_to_an_end_without_any_limit() -> None:
    counters, replans = Counters(), 0
    while isinstance(decision := decide(Unreadable("no"), counters, Limits(), NAMES), Replan):
        counters, replans = decision.counters, replans + 1

    assert decision == Limit("barren_replans", BARREN_REPLANS)
    assert replans == BARREN_REPLANS


ledgers = st.builds(
    judged,
    satisfied=st.just(False),
    loop=st.booleans(),
    progress=st.booleans(),
    speaker=st.sampled_from(["writer", "Researcher ", "nobody", ""]),
)
judgements = st.one_of(ledgers, st.just(Unreadable("no")))


@given(st.lists(judgements, min_size=120, max_size=160), st.integers(0, 3), st.integers(1, 20), st.integers(0, 5))
def test_no_sequence_of_ledgers_gets_past_the_limits(
    sequence: list[MagenticProgressLedger | Unreadable], stalls: int, rounds: int, resets: int
) -> None:
    limits = Limits(max_stall_count=stalls, max_round_count=rounds, max_reset_count=resets)
    counters = Counters()
    spoken = replanned = 0
    for judgement in sequence:
        decision = decide(judgement, counters, limits, NAMES)
        if isinstance(decision, Limit):
            break
        assert isinstance(decision, Speak | Replan)
        counters = decision.counters
        spoken += isinstance(decision, Speak)
        replanned += isinstance(decision, Replan)
    else:
        pytest.fail("the limits never ended it")
    assert spoken <= rounds
    assert replanned <= resets
    assert counters.stalls <= stalls


@given(st.lists(judgements, max_size=60))
def test_counters_never_go_back_and_a_speaker_is_always_on_the_team(
    sequence: list[MagenticProgressLedger | Unreadable],
) -> None:
    counters = Counters()
    for judgement in sequence:
        decision = decide(judgement, counters, Limits(), NAMES)
        if isinstance(decision, Finish | Limit):
            return
        assert decision.counters.rounds >= counters.rounds
        assert decision.counters.resets >= counters.resets
        assert decision.counters.stalls >= 0
        if isinstance(decision, Speak):
            assert decision.speaker in NAMES
        counters = decision.counters


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(Limits(max_round_count=2), False, id="the same"),
        pytest.param(Limits(max_round_count=1), False, id="lower"),
        pytest.param(Limits(max_round_count=3), True, id="higher"),
        pytest.param(Limits(), True, id="gone"),
    ],
)
def test_a_run_may_go_on_when_its_limit_was_raised(limits: Limits, expected: bool) -> None:
    assert may_go_on(Limit("max_round_count", 2), limits) is expected
