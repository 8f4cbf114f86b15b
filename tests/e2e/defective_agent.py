"""The real agent with a defect: `LAB_DEFECT=FILE python -m tests.e2e.defective_agent agent ...` dies once the file is there."""

from __future__ import annotations

import asyncio
import os
import time

from lbagent.agent import app
from lbagent.cli.main import main


def wait() -> None:
    """Wait for the file."""
    while not os.path.exists(os.environ["LAB_DEFECT"]):
        time.sleep(0.05)


async def defect() -> None:
    """Raise what no agent raises on purpose."""
    await asyncio.to_thread(wait)
    raise ZeroDivisionError("the defect of the test")


app.keep_watchdog = defect

if __name__ == "__main__":
    main()
