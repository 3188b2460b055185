"""Seed 002, sample 4: checkpointing a workflow that is wrapped as an agent. Killed processes: `test_team_kills.py`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepwell import AgentSession, InMemoryCheckpointStorage, WorkflowAgent, WorkflowBuilder
from stepwell.testing import ScriptedChatClient
from tests.faults.backends import BACKENDS, Backend, open_store


class Place:
    """Where checkpoints are kept; each `open` is what another process would see."""

    def __init__(self, store: str | None) -> None:
        self._store = store
        self._memory = InMemoryCheckpointStorage()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        if self._store is None:
            yield self._memory
            return
        async with open_store(self._store) as storage:
            yield storage


@pytest.fixture(params=[None, *BACKENDS.values()], ids=["memory", *BACKENDS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    backend: Backend | None = request.param
    if backend is None:
        yield Place(None)
        return
    store = backend.place(tmp_path)
    yield Place(store)
    backend.tear_down(store)


class Models:
    """An assistant and a reviewer, who say how much they have heard."""

    def __init__(self) -> None:
        self.assistant = ScriptedChatClient(lambda messages: f"benefit {len(messages)}")
        self.reviewer = ScriptedChatClient(lambda messages: f"review {len(messages)}")

    def build(self) -> WorkflowAgent:
        assistant = self.assistant.as_agent(name="assistant", instructions="You are a helpful assistant.")
        reviewer = self.reviewer.as_agent(name="reviewer", instructions="You review what the assistant says.")
        workflow = WorkflowBuilder(start_executor=assistant, name="reviewed").add_edge(assistant, reviewer).build()
        return workflow.as_agent(name="CheckpointedAgent")


async def test_running_the_agent_with_a_storage_leaves_checkpoints(place: Place) -> None:
    agent = Models().build()

    async with place.open() as checkpoint_storage:
        response = await agent.run("What are the benefits of wells?", checkpoint_storage=checkpoint_storage)
        checkpoints = await checkpoint_storage.list_checkpoints(workflow_name=agent.workflow.name)

    assert [(m.author_name or m.role, m.text) for m in response.messages] == [
        ("assistant", "benefit 2"),
        ("reviewer", "review 3"),
    ]
    assert [checkpoint.iteration_count for checkpoint in checkpoints] == [0, 1, 2]


async def test_a_session_and_a_storage_together_remember_the_conversation(place: Place) -> None:
    models = Models()
    async with place.open() as checkpoint_storage:
        agent = models.build()
        session = agent.create_session()
        await agent.run("My favourite is Chand Baori.", session=session, checkpoint_storage=checkpoint_storage)
        saved = json.dumps(session.to_dict())

    async with place.open() as checkpoint_storage:
        restored = AgentSession.from_dict(json.loads(saved))
        response = await models.build().run(
            "Which one was it?", session=restored, checkpoint_storage=checkpoint_storage
        )
        [run] = await checkpoint_storage.list_runs()

    said = [message.text for message in models.assistant.asked[-1].messages]
    assert said == [
        "You are a helpful assistant.",
        "My favourite is Chand Baori.",
        "benefit 2",
        "Which one was it?",
    ]
    assert [message.text for message in response.messages] == ["benefit 4", "review 6"]
    assert run.supersteps == 4


async def test_streaming_with_checkpoints(place: Place) -> None:
    agent = Models().build()

    async with place.open() as checkpoint_storage:
        stream = agent.run("What are the benefits?", checkpoint_storage=checkpoint_storage, stream=True)
        text = "".join([update.text async for update in stream if update.text])
        checkpoints = await checkpoint_storage.list_checkpoints(workflow_name=agent.workflow.name)

    assert text == "benefit 2review 3"
    assert len(checkpoints) == 3


async def test_the_agent_resumes_a_checkpoint_in_the_middle(place: Place) -> None:
    models = Models()
    async with place.open() as checkpoint_storage:
        await models.build().run("What are the benefits?", checkpoint_storage=checkpoint_storage)
        [_, middle, _] = await checkpoint_storage.list_checkpoints(workflow_name="reviewed")

    async with place.open() as checkpoint_storage:
        response = await models.build().run(checkpoint_id=middle.checkpoint_id, checkpoint_storage=checkpoint_storage)

    assert [message.text for message in response.messages] == ["benefit 2", "review 3"]
    assert (len(models.assistant.asked), len(models.reviewer.asked)) == (1, 2)
