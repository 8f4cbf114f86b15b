"""What is in force in place of an operator's settings while nftables has connections from before (targets/nftables/left_nft.py).

Only a SYN begins a flow of TCP: segments of a connection that the kernel translates pass. SNAT ports are none that netfilter uses:
connection tracking and a SNAT slot may not have one port towards one backend. Afterwards both ranges are in force, as flows have
ports of the first one: a later agent finds them in the settings of the programs. Programs that are there already, with flows,
keep their range.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from lbagent.config import Config
from lbagent.targets.bpf.passing_rows import PassingRows

PORTS = 256, 1023  # netfilter takes ports from 1024 on


class BesideNftables:
    """What of the data plane bpf differs."""

    def __init__(self) -> None:
        self.snat_ports: tuple[int, int] | None = None  # of the programs that are pinned; None: there are none
        self.passing: PassingRows | None = None  # bpf begins no flow
        self.changed = asyncio.Event()  # a State is in force by which it does, or does not, as requested last
        self._shares = False
        self._wanted = Config()  # without what is in force in its place

    def begin(self, config: Config, *, passing: bool) -> None:
        """Share the packets of frontends with nftables."""
        self._shares, self._wanted = True, config
        self.passing = PassingRows() if passing else None

    def all_ports(self, config: Config) -> tuple[int, int]:
        """Return the range with the ports of flows, and those that the operator wants; `config` is in force."""
        (first, last), (wanted_first, wanted_last) = config.snat_port_range, self._wanted.snat_port_range
        return min(first, wanted_first), max(last, wanted_last)

    def widen(self, config: Config) -> Config:
        """Take all ports; return the operator's settings."""
        self.snat_ports = self.all_ports(config)
        return self._wanted

    def end(self, config: Config) -> Config:
        """Share nothing any more; return the operator's settings."""
        self._shares, self.snat_ports = False, config.snat_port_range
        return self._wanted

    def in_force(self, config: Config) -> Config:
        """Return the settings that are in force in place of these."""
        if self._shares:
            self._wanted = config
            default = PORTS if config.snat_ports == Config().snat_ports else config.snat_port_range
            return replace(config, new_flows="syn", snat_ports=_text(*(self.snat_ports or default)))
        first, last = config.snat_port_range
        if self.snat_ports and self.snat_ports[0] == PORTS[0] < first:
            last = max(last, self.snat_ports[1])
            return replace(config, snat_ports=_text(PORTS[0], last))
        return config


def _text(first: int, last: int) -> str:
    return f"{first}-{last}"
