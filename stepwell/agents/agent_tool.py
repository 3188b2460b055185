"""An agent as a tool of another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from stepwell.agents.chat import AgentResponse, Message
from stepwell.agents.tools import CallPaused, FunctionTool, ResumedCall, ToolContext

if TYPE_CHECKING:
    from stepwell.agents.agent import SupportsAgentRun


class AgentTool(FunctionTool):
    """Passes a task to an agent and returns its answer; made by `as_tool`.

    Each call is a conversation of its own. If the agent asks a person the call pauses, and is taken up again with what
    it was answered.
    """

    def __init__(self, agent: SupportsAgentRun, *, argument: tuple[str, str], **options: Any) -> None:
        async def ask(**arguments: str) -> str:
            response: AgentResponse = await agent.run(arguments[argument[0]])
            return response.text

        super().__init__(ask, **options)
        self.agent = agent
        self._argument = argument

    @property
    def parameters_model(self) -> type[BaseModel]:
        """Its one parameter is named at run time, so no signature tells it."""
        name, description = self._argument
        field: Any = (str, Field(alias=name, description=description))
        return create_model("Task", __config__=ConfigDict(extra="forbid"), arg0=field)

    async def invoke(
        self, arguments: BaseModel | Mapping[str, Any] | str | None = None, *, context: ToolContext | None = None
    ) -> Any:
        model = arguments if isinstance(arguments, BaseModel) else self.validate(arguments)
        resumed = context.resumed if context is not None else None
        if resumed is None:
            session = self.agent.create_session()
            response: AgentResponse = await self.agent.run(str(model.arg0), session=session)  # type: ignore[attr-defined]
        else:
            session, response = resumed.session, await self._answered(resumed)
        if response.user_input_requests:
            raise CallPaused(session, response.user_input_requests)
        return response.text

    async def _answered(self, resumed: ResumedCall) -> AgentResponse:
        # An agent that knows nothing of typed responses is never given any: it asks by contents alone.
        typed: dict[str, Any] = {"responses": resumed.responses} if resumed.responses else {}
        said = [Message("user", resumed.answers)] if resumed.answers else []
        response: AgentResponse = await self.agent.run(said, session=resumed.session, **typed)
        return response
