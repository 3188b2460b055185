"""A payment that is made at most once, whatever happens to the process that makes it.

An at-most-once call leaves a mark before it is made. If the process dies before the result is on record, nobody knows
whether the money went out: the next process does not try again but asks a person, who looks at the bank's statement.

    python samples/08_pay_once.py            # pays, and is killed while the bank works (exit status -9)
    python samples/08_pay_once.py            # asks: the payment is in doubt, and is not made again
    python samples/08_pay_once.py done       # a person has seen it on the statement: the run goes on with that
    python samples/08_pay_once.py retry      # or it is not there: the payment is made again, with the same key
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from stepwell import (
    CallInDoubt,
    CallVerdict,
    Executor,
    SQLiteCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)

STORE = Path(os.environ.get("STEPWELL_STORE", ".stepwell/payments.db"))
STATEMENT = STORE.with_suffix(".statement.txt")
"""The bank's side: what really happened, kept outside of this program."""


def transfer(invoice: str, euros: int, idempotency_key: str) -> str:
    """Stands for the bank. The first time, this process dies when the money has gone and before the bank can say so."""
    is_first = not STATEMENT.exists()
    with STATEMENT.open("a") as statement:
        statement.write(f"{euros} euros for {invoice}, key {idempotency_key}\n")
    if is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"receipt for {invoice}"


class Cashier(Executor):
    @handler
    async def pay(self, invoice: str, ctx: WorkflowContext[None, str]) -> None:
        receipt = await ctx.call(transfer, invoice, 120, ctx.idempotency_key, at_most_once=True)
        await ctx.yield_output(f"filed: {receipt}")


def verdict(doubt: CallInDoubt, word: str) -> CallVerdict:
    return doubt.done("receipt seen on the statement") if word == "done" else doubt.retry()


async def main() -> None:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word not in ("", "done", "retry"):
        sys.exit(__doc__)
    async with SQLiteCheckpointStorage(STORE) as storage:
        workflow = WorkflowBuilder(
            start_executor=Cashier("cashier"), name="payments", checkpoint_storage=storage
        ).build()
        result = await workflow.run("invoice-4711", run_id="invoice-4711")
        for event in result.get_request_info_events():
            doubt: CallInDoubt = event.data
            print(f"in doubt: {doubt.name}({doubt.request_preview})")
            if word:
                result = await workflow.run(responses={event.request_id: verdict(doubt, word)})
        print(f"{result.get_final_state()}: {result.get_outputs()}")
        print(f"the bank's statement:\n{STATEMENT.read_text()}", end="")


if __name__ == "__main__":
    asyncio.run(main())
