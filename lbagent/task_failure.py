"""Logs the error of a task without a waiter when it ends, not when it is collected."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

log = logging.getLogger(__name__)


def log_failure(task: asyncio.Task[Any]) -> None:
    """Log the error that ended a task: a callback for `Task.add_done_callback`."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a task ended with an error", exc_info=error, extra={"task": task.get_name()})
