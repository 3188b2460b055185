"""What a fork has to wait for, and what the child has to forget.

A child gets a copy of the parent's memory but not its threads. A lock that a thread of the parent held at that instant,
one of SQLite's own for example, stays locked in the child for ever. So a fork waits until nobody is inside the
database, and the child starts with connections, threads and OS locks of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

_LONGEST_WAIT_SECONDS = 5.0

_guards: WeakSet[threading.Lock] = WeakSet()
_taken: list[threading.Lock] = []
_in_child: list[Callable[[], None]] = []


def fork_guard() -> threading.Lock:
    """A lock for one thread at a time to hold while it must not be copied in the middle of its work."""
    guard = threading.Lock()
    _guards.add(guard)
    return guard


def after_fork_in_child(forget: Callable[[], None]) -> None:
    """Call `forget` in every forked child before anything else runs there."""
    _in_child.append(forget)


def _wait() -> None:
    _taken.extend(guard for guard in list(_guards) if guard.acquire(timeout=_LONGEST_WAIT_SECONDS))


def _go_on() -> None:
    while _taken:
        with suppress(RuntimeError):  # a guard whose owner is the forking thread itself
            _taken.pop().release()


def _start_afresh() -> None:
    _taken.clear()
    _guards.clear()  # they guard what the parent has
    for forget in _in_child:
        forget()


os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_start_afresh)
