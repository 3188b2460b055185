"""Who works on a run right now, as far as can be told without asking for the run."""

from __future__ import annotations

import os
import socket

from stepwell.checkpointing.lease import Holder
from stepwell.checkpointing.storage.protocol import RunInfo


def at_work_on(run: RunInfo) -> str | None:
    """The process that holds a run, in words; None if nobody does.

    A process that was killed leaves its name behind, and whoever takes the run next removes it. So a holder on this
    host counts only if there is such a process; one on another host is believed.
    """
    if run.holder is None:
        return None
    try:
        holder = Holder.parse(run.holder)
    except ValueError:
        return run.holder  # a storage that names its holders in another way
    if holder.host == socket.gethostname() and not _is_there(holder.pid):
        return None
    return holder.described


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
