"""The superstep engine: message, edge, superstep, executor, checkpoint."""

from stepwell.workflows.builder import WorkflowBuilder
from stepwell.workflows.context import WorkflowContext
from stepwell.workflows.edges import Case, Default
from stepwell.workflows.events import WorkflowErrorDetails, WorkflowEvent, WorkflowRunResult, WorkflowRunState
from stepwell.workflows.executor import Executor, FunctionExecutor, executor, handler, response_handler
from stepwell.workflows.stream import ResponseStream
from stepwell.workflows.subworkflow import (
    SubWorkflowRequestMessage,
    SubWorkflowResponseMessage,
    WorkflowExecutor,
)
from stepwell.workflows.viz import WorkflowViz
from stepwell.workflows.workflow import Workflow

__all__ = [
    "Case",
    "Default",
    "Executor",
    "FunctionExecutor",
    "ResponseStream",
    "SubWorkflowRequestMessage",
    "SubWorkflowResponseMessage",
    "Workflow",
    "WorkflowBuilder",
    "WorkflowContext",
    "WorkflowErrorDetails",
    "WorkflowEvent",
    "WorkflowExecutor",
    "WorkflowRunResult",
    "WorkflowRunState",
    "WorkflowViz",
    "executor",
    "handler",
    "response_handler",
]
