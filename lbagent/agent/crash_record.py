"""The records that agents leave in the state folder when a defect ends them: the newest MAX_RECORDS of them."""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress

from lbagent.agent.node_record import facts_left, node_record
from lbagent.config import Config
from lbagent.kernel.private_folder import make_private, replace_private

FOLDER = "records"
MAX_RECORDS = 3
_PREFIX, _SUFFIX = "crash-", ".tar.gz"

log = logging.getLogger(__name__)


def write_crash_record(config: Config, error: BaseException, names: Mapping[int, str]) -> None:
    """Write a record, and name it in the log. `names`: NAMESPACE/NAME by id of a frontend.

    Whatever fails is a line of the log: the agent ends with its own error.
    """
    folder = os.path.join(config.state_dir, FOLDER)
    try:
        defect = "".join(traceback.format_exception(error))
        made = node_record(
            config, facts_left(config.state_dir, lambda ident, _: names.get(ident), more=[("defect.txt", defect)])
        )
        name = time.strftime(f"{_PREFIX}%Y%m%dT%H%M%SZ-{os.getpid()}{_SUFFIX}", time.gmtime())
        make_private(folder)
        path = os.path.join(folder, name)
        replace_private(path, made.data)
        _remove_oldest(folder)
    except Exception as failure:  # noqa: BLE001 - the agent ends with its own error, not with this one
        log.error("a defect ends the agent, and no record of it could be written", extra={"error": str(failure)})
        return
    log.error("a defect ends the agent; a record for a bug report was written", extra={"file": path})


def _remove_oldest(folder: str) -> None:
    """Remove the oldest records until MAX_RECORDS are left; their names sort by time."""
    names = sorted(name for name in os.listdir(folder) if name.startswith(_PREFIX) and name.endswith(_SUFFIX))
    for name in names[: max(0, len(names) - MAX_RECORDS)]:
        with suppress(OSError):
            os.unlink(os.path.join(folder, name))
