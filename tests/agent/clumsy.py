"""Run the agent so that its first change of map sizes fails half-way, twice: python -m tests.agent.clumsy agent ...

CLUMSY_FAILURES in the environment is another number of times.
"""

from __future__ import annotations

import itertools
import os

from lbagent.bpf.run import size_change
from lbagent.bpf.run.migrate import migrate_flows
from lbagent.cli.main import main
from lbagent.errors import LbError

_count = itertools.count()


def failing(*args: object, **kwargs: object) -> object:
    """Move nothing the first times."""
    if next(_count) < int(os.environ.get("CLUMSY_FAILURES", "2")):
        raise LbError("the mover stopped 5 positions early")
    return migrate_flows(*args, **kwargs)  # type: ignore[arg-type]


if __name__ == "__main__":
    size_change.migrate_flows = failing  # type: ignore[assignment]
    main()
