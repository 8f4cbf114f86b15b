"""Run the agent so that its first change of map sizes fails half-way, twice: python -m tests.agent.clumsy agent ..."""

from __future__ import annotations

import itertools

from lbagent.bpf.run import size_change
from lbagent.bpf.run.migrate import migrate_flows
from lbagent.cli.main import main
from lbagent.errors import LbError

_count = itertools.count()


def failing(*args: object, **kwargs: object) -> object:
    """Move nothing the first two times."""
    if next(_count) < 2:
        raise LbError("the mover stopped 5 positions early")
    return migrate_flows(*args, **kwargs)  # type: ignore[arg-type]


if __name__ == "__main__":
    size_change.migrate_flows = failing  # type: ignore[assignment]
    main()
