"""stepwell on files, and the least that files can do: the same programs as `ours.py`, in a directory.

Raw keeps each superstep's new bytes in a file of its own: written beside its place, fsynced, renamed, and the folder
fsynced.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import ours
from ours import chat, durable_counter, fan_out, many_runs, newest, prepare_resume, relay, resume

from stepwell import CheckpointStorage, FileCheckpointStorage

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import Figures, Stopwatch, bytes_under, contend, paragraphs, peak_megabytes, tenths


@asynccontextmanager
async def files(directory: str | None) -> AsyncIterator[CheckpointStorage]:
    assert directory is not None
    async with FileCheckpointStorage(Path(directory, "store")) as storage:
        yield storage


ours.sqlite = files  # type: ignore[assignment]  # the same programs, kept elsewhere


# --- raw --------------------------------------------------------------------------------------------------------------


def folder(directory: str) -> Path:
    """Where raw keeps its files, with a newest one to be found by its name."""
    place = Path(directory, "raw")
    place.mkdir(exist_ok=True)
    return place


def write(path: Path, text: str) -> None:
    """Beside its place, and durable."""
    descriptor = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(paths: Iterable[Path], place: Path) -> None:
    """Put what is durable in its place, and make that durable too."""
    for path in paths:
        Path(f"{path}.tmp").rename(path)
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _kept(place: Path, texts: Sequence[str]) -> list[float]:
    stamps = []
    for number, text in enumerate(texts):
        stamps.append(time.perf_counter())
        path = place / f"{number:08}.json"
        write(path, text)
        publish([path], place)
    return stamps


def _spoken(text: str) -> str:
    return json.dumps({"role": "user", "text": text})


def raw_counter(*, directory: str, supersteps: int) -> Figures:
    return tenths(_kept(folder(directory), [json.dumps({"value": number}) for number in range(supersteps)]))


def raw_chat(*, directory: str, supersteps: int) -> Figures:
    stamps = _kept(folder(directory), [_spoken(text) for text in paragraphs(supersteps)])
    return {**tenths(stamps), "bytes": bytes_under(directory)}


def raw_newest(*, directory: str, checkpoints: int) -> Figures:
    """The directory is the index: its last name."""
    place, times = folder(directory), []
    for number in range(checkpoints):
        (place / f"{number:08}.json").write_text(json.dumps({"value": number}))
    for _ in range(50):
        with Stopwatch() as watch:
            newest = max(os.listdir(place))  # noqa: PTH208 - the least there is
            json.loads((place / newest).read_bytes())
        times.append(watch.seconds)
    return {"ms": min(times) * 1e3}


def raw_prepare_resume(*, directory: str, supersteps: int) -> Figures:
    raw_chat(directory=directory, supersteps=supersteps)
    return {}


def raw_resume(*, directory: str, supersteps: int) -> Figures:
    place, before = folder(directory), peak_megabytes()
    with Stopwatch() as watch:
        names = sorted(os.listdir(place))  # noqa: PTH208 - the least there is
        messages = [json.loads((place / name).read_bytes()) for name in names]
        path = place / f"{len(messages):08}.json"
        write(path, _spoken("one more"))
        publish([path], place)
    assert len(messages) == supersteps
    return {"ms": watch.seconds * 1e3, "peak_mb": peak_megabytes() - before}


async def raw_runs(*, directory: str, runs: int, supersteps: int, seconds: float) -> Figures:
    """Each superstep of each run is one file; the folder is made durable once for all files of a round."""
    place = folder(directory)
    with ThreadPoolExecutor(8) as threads, Stopwatch() as watch:
        for number in range(supersteps + 1):
            await asyncio.sleep(seconds)
            texts = {place / f"{run}.{number}.json": json.dumps({"value": number}) for run in range(runs)}
            for _ in threads.map(write, texts.keys(), texts.values()):
                pass
            publish(texts, place)
    return {"seconds": watch.seconds}


if __name__ == "__main__":
    contend(
        {
            "durable_counter": durable_counter,
            "chat": chat,
            "relay": relay,
            "newest": newest,
            "prepare_resume": prepare_resume,
            "resume": resume,
            "many_durable_runs": many_runs,
            "durable_fan_out": fan_out,
            "raw_durable_counter": raw_counter,
            "raw_chat": raw_chat,
            "raw_newest": raw_newest,
            "raw_prepare_resume": raw_prepare_resume,
            "raw_resume": raw_resume,
            "raw_many_durable_runs": raw_runs,
        }
    )
