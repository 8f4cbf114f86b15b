"""Faults of each write of a cloud controller, and a kill at each of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from tests.kube_api.cloud_process import WITHIN_S, CloudLab, CloudProcess
from tests.kube_api.http_proxy import Write, WriteFault


def write_faults(resource: str) -> list[WriteFault]:
    """Return the faults of a write to a resource: a refusal, an error, a reset, no answer; also after it was applied."""
    return [
        WriteFault(resource, 409),
        WriteFault(resource, 409, passed_on=True),
        WriteFault(resource, 429, headers={"Retry-After": "1"}),
        WriteFault(resource, 500),
        WriteFault(resource, 500, passed_on=True),
        WriteFault(resource),
        WriteFault(resource, passed_on=True),
        WriteFault(resource, silent=True),
        WriteFault(resource, passed_on=True, silent=True),
    ]


def name_of(fault: WriteFault) -> str:
    """Return the name of a fault in tests."""
    return f"{fault.status or ('stall' if fault.silent else 'reset')}{'-done' if fault.passed_on else ''}"


class Killer:
    """Kills a controller at one of its writes to these resources: before the server has it, or before the answer."""

    def __init__(self, cloud: CloudLab, process: CloudProcess, resources: Collection[str], *, passed_on: bool) -> None:
        self._process, self._resources = process, resources
        self._left, self.died = -1, threading.Event()
        setattr(cloud.front, "on_written" if passed_on else "on_write", self)

    def __call__(self, write: Write) -> None:
        if write.resource not in self._resources or self._left < 0:
            return
        self._left -= 1
        if self._left < 0:
            self._process.kill()
            self.died.set()
            raise ConnectionResetError

    def until_dead(self, nth: int, is_done: Callable[[], bool]) -> bool:
        """Start the controller and wait until it died at its nth write; return False if no write was left."""
        self._left = nth
        self.died.clear()
        self._process.start()
        end = time.monotonic() + WITHIN_S
        while not self.died.is_set():
            assert time.monotonic() < end, self._process.tail()
            if is_done():
                self._left = -1
                self._process.kill()
                return False
            time.sleep(0.02)
        return True
