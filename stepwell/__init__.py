"""Durable teams of agents: a manager plans, specialists work, a person approves, and no crash loses finished work."""

from stepwell.checkpointing import *  # noqa: F403
from stepwell.errors import *  # noqa: F403
from stepwell.workflows import *  # noqa: F403
