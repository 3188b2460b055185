"""A payment that was cut off: nobody knows whether it took place, so a person is asked."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from stepwell.checkpointing.journal import idempotency_key
from tests.faults.backends import open_store
from tests.faults.children import Case, Ending
from tests.faults.workloads import answer_to

PAID = [answer_to(f"invoice.{number}") for number in (1, 2, 3)]


@pytest.fixture
def payments(case: Case) -> Case:
    """Three invoices, to be paid at most once each."""
    return replace(case, workload="payments", options={"call_ms": 1})


def asked(ending: Ending) -> str:
    """The one request that a life ended with."""
    assert ending.output is None, ending
    assert ending.error is None, ending
    [request] = ending.told("request")
    request_id: str = request["request_id"]
    return request_id


def cut_off(payments: Case, point: str = "in call#2") -> str:
    """Killed in the middle of the second payment, resumed, and asked about it."""
    assert payments.live(crash_at=point).was_killed
    return asked(payments.live())


def answered(payments: Case, request_id: str, *, crash_at: str = "", **verdict: Any) -> Ending:
    return payments.live(crash_at=crash_at, answers={request_id: verdict})


DONE = {"kind": "done", "result": "receipt from the bank"}
RETRY = {"kind": "retry"}
FAIL = {"kind": "fail", "reason": "the bank says no"}

ANSWERS = [
    pytest.param(DONE, [PAID[0], "receipt from the bank", PAID[2]], 1, id="done"),
    pytest.param(RETRY, PAID, 2, id="retry"),
    pytest.param(FAIL, [PAID[0], "not paid: the bank says no", PAID[2]], 1, id="fail"),
]


@pytest.mark.parametrize(("verdict", "output", "payments_made"), ANSWERS)
@pytest.mark.parametrize("point", ["in call#2", "finished call#2"])
def test_each_answer_does_what_it_says(
    payments: Case, point: str, verdict: dict[str, str], output: list[str], payments_made: int
) -> None:
    request_id = cut_off(payments, point)

    ending = answered(payments, request_id, **verdict)

    assert ending.output == output
    assert payments.account().starts == {"invoice.1": 1, "invoice.2": payments_made, "invoice.3": 1}


def test_the_question_is_the_same_after_every_restart_and_nothing_is_called_meanwhile(payments: Case) -> None:
    request_id = cut_off(payments)
    before = payments.account()

    assert [asked(payments.live()) for _ in range(2)] == [request_id] * 2
    assert payments.account().since(before).starts.total() == 0


@pytest.mark.parametrize("point", ["before checkpoint", "after checkpoint"])
def test_being_killed_while_asking_changes_nothing(payments: Case, point: str) -> None:
    assert payments.live(crash_at="in call#2").was_killed
    assert payments.live(crash_at=point).was_killed

    ending = answered(payments, asked(payments.live()), **DONE)

    assert ending.output == [PAID[0], "receipt from the bank", PAID[2]]


@pytest.mark.parametrize("second", [DONE, RETRY, FAIL], ids=lambda verdict: verdict["kind"])
def test_a_second_answer_is_refused(payments: Case, second: dict[str, str]) -> None:
    request_id = cut_off(payments)
    first = answered(payments, request_id, **DONE)
    before = payments.account()

    assert answered(payments, request_id, **second).error == "AlreadyAnswered"
    assert payments.live().output == first.output
    assert payments.account().since(before).starts.total() == 0


@pytest.mark.parametrize(
    ("first", "second", "receipt", "payments_made"),
    [
        pytest.param(DONE, FAIL, "not paid: the bank says no", 1, id="done-fail"),
        pytest.param(RETRY, DONE, "receipt from the bank", 1, id="retry-done"),
        pytest.param(FAIL, RETRY, PAID[1], 2, id="fail-retry"),
    ],
)
def test_an_answer_that_was_cut_off_can_be_given_anew_and_the_new_one_counts(
    payments: Case, first: dict[str, str], second: dict[str, str], receipt: str, payments_made: int
) -> None:
    request_id = cut_off(payments)
    assert answered(payments, request_id, crash_at="before checkpoint", **first).was_killed
    assert asked(payments.live()) == request_id

    assert answered(payments, request_id, **second).output == [PAID[0], receipt, PAID[2]]
    assert payments.account().starts["invoice.2"] == payments_made


@pytest.mark.parametrize(("verdict", "output", "payments_made"), ANSWERS)
def test_killed_just_after_the_answer_was_saved_it_counts(
    payments: Case, verdict: dict[str, str], output: list[str], payments_made: int
) -> None:
    request_id = cut_off(payments)
    assert answered(payments, request_id, crash_at="after checkpoint", **verdict).was_killed

    assert payments.live().output == output
    assert payments.account().starts["invoice.2"] == payments_made


def test_a_payment_that_is_tried_again_and_cut_off_again_is_asked_about_again(payments: Case) -> None:
    request_id = cut_off(payments)
    assert answered(payments, request_id, crash_at="in call#1", **RETRY).was_killed
    before = payments.account()

    again = asked(payments.live())
    assert payments.account().since(before).starts.total() == 0, "nobody said that it may be made a third time"

    assert answered(payments, again, **DONE).output == [PAID[0], "receipt from the bank", PAID[2]]
    assert payments.account().starts["invoice.2"] == 2


async def test_an_answer_can_be_recorded_without_the_program(payments: Case) -> None:
    request_id = cut_off(payments)
    async with open_store(payments.store) as storage:
        await storage.answer(request_id, DONE)

    assert payments.live().output == [PAID[0], "receipt from the bank", PAID[2]]
    assert payments.account().starts["invoice.2"] == 1


def test_a_payment_whose_record_is_durable_is_not_in_doubt(payments: Case) -> None:
    assert payments.live(crash_at="after call#2").was_killed

    assert payments.live().output == PAID
    assert payments.account().starts == {"invoice.1": 1, "invoice.2": 1, "invoice.3": 1}


# --- a person who looks at the bank's books before answering ----------------------------------------------------------

POINTS = (
    "before start",
    "after start",
    "in call",
    "finished call",
    "before call",
    "before commit",
    "after commit",
    "after call",
    "acknowledged",
    "before other commit",
    "before checkpoint",
    "after checkpoint",
    "before release",
)


def by_the_books(payments: Case, request: dict[str, Any]) -> dict[str, Any]:
    """Whether this payment took place is known to the bank; here, to the oracle."""
    key = idempotency_key(payments.run_id, request["data"]["call_id"])
    paid = [entry for entry in payments.account().only("finish") if entry.key == key]
    return {"kind": "done", "result": answer_to(paid[0].call)} if paid else RETRY


def disturbed(payments: Case, dice: random.Random, kills: int) -> Ending:
    """Killed at point after point, whether it works, asks or is answered; a person answers whenever it asks."""
    answers: dict[str, Any] = {}
    for _ in range(100):
        crash_at = f"{dice.choice(POINTS)}#{dice.randint(1, 3)}" if kills > 0 else ""
        ending = payments.live(crash_at=crash_at, **({"answers": answers} if answers else {}))
        kills -= ending.was_killed
        if ending.output is not None and not ending.was_killed:
            return ending
        # An answer that may have been cut off is not given again blindly: the run is asked what it still waits for.
        asked = {} if ending.was_killed else {one["request_id"]: one for one in ending.told("request")}
        assert ending.error is None, ending
        answers = {request_id: by_the_books(payments, request) for request_id, request in asked.items()}
    raise AssertionError("the run never came to its end")


def paid_once_each(case: Case, dice: random.Random, kills: int) -> None:
    payments = replace(case, workload="payments", options={"call_ms": 1, "rounds": 5})

    ending = disturbed(payments, dice, kills)

    invoices = [f"invoice.{number}" for number in range(1, 6)]
    assert ending.output == [answer_to(invoice) for invoice in invoices]
    finished = Counter(entry.call for entry in payments.account().only("finish"))
    assert finished == dict.fromkeys(invoices, 1), "an invoice was paid twice, or never"


def test_with_a_person_who_looks_before_answering_each_invoice_is_paid_exactly_once(case: Case) -> None:
    paid_once_each(case, random.Random(), kills=8)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_each_invoice_is_paid_exactly_once_however_often_the_payer_is_killed(case: Case) -> None:
    for number in range(40):
        paid_once_each(replace(case, run_id=f"run-{number}"), random.Random(number), kills=12)
