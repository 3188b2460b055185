"""When things take too long or go wrong: retries, timeouts, and questions that stop waiting.

A failed attempt leaves nothing behind, and what it had recorded with `ctx.call` is not called again. A question with a
deadline has a default, which the first resume after the deadline delivers as the decision.

    python samples/07_retries_and_deadlines.py

It prints each attempt, then the answer that nobody gave.
"""

import asyncio
from datetime import timedelta

from stepwell import (
    Executor,
    ExecutorTimeout,
    InMemoryCheckpointStorage,
    RetryPolicy,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)

PATIENCE = timedelta(seconds=0.2)  # a day, in a real program


class Forecaster(Executor):
    """Asks two services; the second one answers at the third attempt."""

    attempts = 0  # not in a checkpoint, so a failed attempt does not set it back

    @handler
    async def forecast(self, city: str, ctx: WorkflowContext[str]) -> None:
        place = await ctx.call(self._locate, city)
        self.attempts += 1
        if self.attempts < 3:
            raise ConnectionError("the weather service is busy")
        await ctx.send_message(f"sun at {place}")

    async def _locate(self, city: str) -> str:
        print(f"  looking {city} up, which costs money")
        return "26.9 N, 75.8 E"


class Sleeper(Executor):
    @handler
    async def work(self, text: str, ctx: WorkflowContext) -> None:
        await asyncio.sleep(3600)


class Publisher(Executor):
    @handler
    async def ask(self, forecast: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(f"Publish {forecast!r}?", bool, deadline=PATIENCE, default=False)

    @response_handler
    async def decided(self, question: str, approved: bool, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output("published" if approved else "nobody said yes in time, so it is not published")


def weather_desk() -> Workflow:
    politely = RetryPolicy(max_attempts=5, max_seconds=30, initial_wait=0.01, retry_on=(ConnectionError,))
    forecaster, publisher = Forecaster("forecaster", retry=politely), Publisher("publisher")
    builder = WorkflowBuilder(start_executor=forecaster, checkpoint_storage=InMemoryCheckpointStorage())
    return builder.add_edge(forecaster, publisher).build()


async def main() -> None:
    workflow = weather_desk()
    async for event in workflow.run("Jaipur", stream=True, run_id="forecast"):
        if event.type == "executor_retrying":
            print(f"  {event.executor_id} tries again: {event.details['error']}")
        elif event.type == "request_info":
            print(event.data)

    await asyncio.sleep(PATIENCE.total_seconds())
    result = await workflow.run(run_id="forecast")  # or `await workflow.recover()` when the program starts
    print(result.get_outputs()[0])

    try:
        await WorkflowBuilder(start_executor=Sleeper("sleeper", timeout=0.05)).build().run("wake up")
    except ExecutorTimeout as error:
        print(f"ExecutorTimeout: {error}")


if __name__ == "__main__":
    asyncio.run(main())
