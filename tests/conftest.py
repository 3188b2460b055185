"""What every test runs under: no blocking call on the event loop, no traffic off this machine, no task left behind."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from blockbuster import BlockBuster

REPOSITORY = Path(__file__).resolve().parent.parent
LIBRARY = f"{REPOSITORY / 'stepwell'}/"
TEST_CODE = (f"{REPOSITORY / 'tests'}/", f"{REPOSITORY / 'samples'}/", f"{LIBRARY}testing/")


# --- nothing blocks the event loop ------------------------------------------------------------------------------------


def called_by_test_code(frame: FrameType | None) -> bool:
    """Whether the code of ours that is nearest to a call is a test, a sample or a helper for tests.

    A handler written in a test runs with the engine's frames below it. What it does to the event loop is its own
    business; what the engine does is not.
    """
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith(TEST_CODE):
            return True
        if filename.startswith(LIBRARY):
            return False
        frame = frame.f_back
    return False


def unless_test_code(allowed: Callable[..., bool]) -> Callable[..., bool]:
    def predicate(*args: Any, **kwargs: Any) -> bool:
        return allowed(*args, **kwargs) or called_by_test_code(sys._getframe(1))

    return predicate


@pytest.fixture(scope="session", autouse=True)
def nothing_blocks_the_event_loop() -> Iterator[None]:
    """A blocking call that stepwell makes on the event loop raises `blockbuster.BlockingError`."""
    guard = BlockBuster(scanned_modules=["stepwell"])
    for function in guard.functions.values():
        function.can_block_predicate = unless_test_code(function.can_block_predicate)
    guard.activate()
    yield
    guard.deactivate()


# --- nothing leaves this machine --------------------------------------------------------------------------------------


class LeftTheMachine(Exception):
    """A test tried to reach something that is neither on the loopback interface nor a Unix socket."""


departures: list[str] = []


def on_this_machine(host: object) -> bool:
    if host is None or host in ("", "localhost", b"localhost"):
        return True
    text = host.decode(errors="replace") if isinstance(host, bytes) else str(host)
    try:
        return ipaddress.ip_address(text.partition("%")[0]).is_loopback
    except ValueError:
        return False


def watch_sockets(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook: the interpreter calls it before it connects, sends or looks a name up."""
    if event in ("socket.connect", "socket.sendto"):
        connection, address = args
        if connection.family == socket.AF_UNIX or on_this_machine(address[0]):
            return
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        address = args[0]
        if on_this_machine(address):
            return
    else:
        return
    departures.append(f"{event} {address!r}")
    raise LeftTheMachine(departures[-1])


sys.addaudithook(watch_sockets)


@pytest.fixture(autouse=True)
def nothing_leaves_this_machine() -> Iterator[None]:
    """Fails the test even if the library caught `LeftTheMachine` and went on."""
    departures.clear()
    yield
    assert not departures, f"a socket left this machine: {departures}"


# --- no task outlives its test ----------------------------------------------------------------------------------------

GRACE_SECONDS = 1.0


async def unfinished_tasks() -> set[asyncio.Task[Any]]:
    """The tasks that are still there after those already on their way out had the time to go."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if not tasks:
        return set()
    _, pending = await asyncio.wait(tasks, timeout=GRACE_SECONDS)
    return pending


@pytest.fixture
async def no_task_is_left_behind() -> AsyncIterator[None]:
    yield
    left = await unfinished_tasks()
    assert not left, f"tasks outlived the test: {left}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Only tests that have an event loop get the fixture, and first: it looks when all others have cleaned up."""
    if asyncio.iscoroutinefunction(metafunc.function) and "no_task_is_left_behind" not in metafunc.fixturenames:
        metafunc.fixturenames.insert(0, "no_task_is_left_behind")
