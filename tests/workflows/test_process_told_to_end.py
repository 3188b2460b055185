"""A handler that tells the process to end has not failed: its run is cut off as if by a kill, and can be recovered."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
    import asyncio, json, sys
    from stepwell import SQLiteCheckpointStorage, WorkflowBuilder, WorkflowContext, executor

    path, how, where, streaming = sys.argv[1:]
    paid = []

    def end():
        if how == "exit":
            sys.exit(3)
        raise KeyboardInterrupt

    def pay():
        paid.append("once")
        return "receipt"

    def build(storage, *, ends):
        @executor(id="desk")
        async def desk(message: str, ctx: WorkflowContext[None, str]) -> None:
            receipt = await ctx.call(pay, key="pay")
            if ends and where == "a call":
                await ctx.call(end, key="end")
            if ends:
                end()
            await ctx.yield_output(f"{message}: {receipt}")

        @executor(id="thread")
        def thread(message: str, ctx: WorkflowContext[None, str]) -> None:
            if ends:
                end()

        chosen = thread if where == "a thread" and ends else desk
        return WorkflowBuilder(start_executor=chosen, name="desk", checkpoint_storage=storage).build()

    async def work():
        async with SQLiteCheckpointStorage(path) as storage:
            await build(storage, ends=True).run("go", run_id="r", stream=bool(streaming))

    async def afterwards():
        async with SQLiteCheckpointStorage(path) as storage:
            [run] = await storage.list_runs()
            recovered = await build(storage, ends=False).recover(storage)
            return [run.state, run.stopped_by, [result.get_outputs() for result in recovered], paid]

    try:
        asyncio.run(work())
    except (SystemExit, KeyboardInterrupt) as error:
        print(json.dumps([repr(error), *asyncio.run(afterwards())]))
"""


def told_by(path: Path, *arguments: str) -> Any:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("streaming", ["", "yes"], ids=["awaited", "streamed"])
@pytest.mark.parametrize(("how", "error"), [("exit", "SystemExit(3)"), ("interrupt", "KeyboardInterrupt()")])
@pytest.mark.parametrize("where", ["the handler", "a call"])
def test_its_run_is_cut_off_and_recovered_without_repeating_a_call(
    tmp_path: Path, how: str, error: str, where: str, streaming: str
) -> None:
    told = told_by(tmp_path / "runs.db", how, where, streaming)

    assert told == [error, "IN_PROGRESS", None, [["go: receipt"]], ["once"]]


def test_a_handler_in_a_thread_is_no_exception(tmp_path: Path) -> None:
    error, state, stopped_by, _, _ = told_by(tmp_path / "runs.db", "exit", "a thread", "")

    assert (error, state, stopped_by) == ("SystemExit(3)", "IN_PROGRESS", None)
