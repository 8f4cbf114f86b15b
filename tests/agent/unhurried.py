"""Run the agent so that it takes its time between two hooks and begins with the last one: python -m tests.agent.unhurried agent ..."""

from __future__ import annotations

import time
from collections.abc import Iterable

from lbagent.bpf.load import attach
from lbagent.bpf.load.device_attach import DeviceAttacher
from lbagent.cli.main import main

PAUSE_S = 0.3
_attach, _one = attach.attach, DeviceAttacher.attach


def backwards(root: object, wanted: Iterable[attach.Attachment], *args: object, **kwargs: object) -> object:
    """Attach or update the last hook first."""
    return _attach(root, sorted(wanted, key=str, reverse=True), *args, **kwargs)  # type: ignore[arg-type]


def slowly(*args: object, **kwargs: object) -> object:
    """Attach or update one after a pause."""
    time.sleep(PAUSE_S)
    return _one(*args, **kwargs)  # type: ignore[arg-type]


if __name__ == "__main__":
    attach.attach = backwards  # type: ignore[assignment]
    DeviceAttacher.attach = slowly  # type: ignore[assignment, method-assign]
    main()
