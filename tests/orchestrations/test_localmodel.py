"""A real, small model drives a team: valid ledgers, known speakers, an end, and usage above zero.

OPENAI_BASE_URL=http://127.0.0.1:18081/v1 python -m pytest -m localmodel tests/orchestrations
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepwell import Agent, OpenAIChatClient
from stepwell.agents.client import real_models_allowed
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
from stepwell.orchestrations import GroupChatRequestSentEvent, MagenticBuilder, MagenticProgressLedger

pytestmark = [
    pytest.mark.localmodel,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("OPENAI_BASE_URL" not in os.environ, reason="no model is served on this machine"),
]


async def test_a_small_model_keeps_to_the_protocol_and_comes_to_an_end(tmp_path: Path) -> None:
    client = OpenAIChatClient(model="local", api_key="none-needed", base_url=os.environ["OPENAI_BASE_URL"], timeout=600)
    options = {"max_tokens": 600}
    names = {"researcher", "writer"}
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        workflow = MagenticBuilder(
            participants=[Agent(client, "Be brief.", name=name, default_options=options) for name in sorted(names)],
            manager_agent=Agent(client, "Be brief.", name="manager", default_options=options),
            checkpoint_storage=storage,
            max_round_count=3,
            max_reset_count=1,
        ).build()
        with real_models_allowed():
            result = await workflow.run("Write two sentences about stepwells.")

    [output] = result.get_outputs()
    told = [event.data for event in result if event.type == "magentic_orchestrator"]
    assert output.text.strip()
    assert any(isinstance(event.content, MagenticProgressLedger) for event in told)
    asked = [event.data for event in result if isinstance(event.data, GroupChatRequestSentEvent)]
    assert {event.participant_name for event in asked} <= names
    assert result.usage["manager"]["total_tokens"] > 0
