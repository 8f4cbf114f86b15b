"""`python -m tests.kube_api.agent_with_clock agent …`: the agent, on a node whose clock is wrong by the seconds in the file of LAB_CLOCK.

Only the wall clock is wrong; the steady clock is the kernel's, which the programs use too.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

from lbagent.cli.main import main
from lbagent.kube import leases

_FILE = Path(os.environ["LAB_CLOCK"])
_time = time.time


def _wrong_by() -> float:
    return float(_FILE.read_text())


class WrongDatetime(datetime):
    """datetime with that clock."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz or UTC) + timedelta(seconds=_wrong_by())


if __name__ == "__main__":
    time.time = lambda: _time() + _wrong_by()
    leases.datetime = WrongDatetime  # type: ignore[misc]
    main()
