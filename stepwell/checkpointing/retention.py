"""Which checkpoints of a run stay."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retention:
    """Keep the newest `count` checkpoints of each run, or all of them.

    The newest checkpoint always stays: it holds everything a run needs to go on, pending requests included.
    """

    count: int | None

    def __post_init__(self) -> None:
        if self.count is not None and (type(self.count) is not int or self.count < 1):
            raise ValueError(f"keep_last({self.count!r}): at least the newest checkpoint has to stay; use keep_last(1)")


FULL_HISTORY = Retention(None)
LATEST_ONLY = Retention(1)


def keep_last(count: int) -> Retention:
    """Keep the newest `count` checkpoints of each run."""
    return Retention(count)
