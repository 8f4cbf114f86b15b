"""Run the agent so that it dies by SIGKILL before its n-th write to a map: python -m tests.agent.mortal N agent ..."""

from __future__ import annotations

import os
import signal
import sys

from lbagent.cli.main import main
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.targets.bpf import bpf_plane
from lbagent.testing.faulty_maps import FaultyMaps

LIFE = int(sys.argv.pop(1))


class MortalMaps(FaultyMaps):
    """The pinned maps, written one entry at a time, until the n-th."""

    def __init__(self, maps: KernelMaps) -> None:
        super().__init__(maps, before=self.die)
        self.fds, self.close, self.created = maps.fds, maps.close, maps.created

    @staticmethod
    def die(number: int, _map_name: str) -> None:
        if number == LIFE:
            os.kill(os.getpid(), signal.SIGKILL)

    @classmethod
    def open(cls, *args: object, **options: object) -> MortalMaps:
        return cls(KernelMaps.open(*args, **options))  # type: ignore[arg-type]


if __name__ == "__main__":
    bpf_plane.KernelMaps = MortalMaps  # type: ignore[assignment,misc]
    main()
