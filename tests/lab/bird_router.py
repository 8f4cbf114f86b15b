"""A router with a real BIRD in a namespace: its BGP routes are in the namespace's routing tables, with all announcing nodes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from lbagent.announce.bgp.bird_process import find_program
from tests.lab.netns import Namespace, run, wait_for
from tests.lab.topology import end

CONFIG = """
router id {router_id};
log "{log}" all;
protocol device {{ }}
protocol kernel {{ ipv4 {{ import none; export all; }}; merge paths on; }}
protocol kernel {{ ipv6 {{ import none; export all; }}; merge paths on; }}
protocol bfd {{ }}
"""


class BirdRouter:
    """One BIRD, and its files in a folder."""

    def __init__(self, space: Namespace, folder: Path) -> None:
        self.space, self.folder = space, folder
        self.socket = folder / "router.ctl"
        self.process: subprocess.Popen[str] | None = None

    def start(self, router_id: str, neighbours: str) -> None:
        """Start it with these `protocol bgp` statements; return when it answers. Raises NoBird."""
        config = self.folder / "router.conf"
        config.write_text(CONFIG.format(router_id=router_id, log=self.folder / "router.log") + neighbours)
        argv = [find_program(), "-f", "-c", str(config), "-s", str(self.socket)]
        self.process = self.space.popen(argv, cwd=self.folder)
        wait_for(self.socket.exists, "the router's socket")

    def ask(self, *words: str) -> str:
        """Return the output of birdc."""
        return run("birdc", "-s", str(self.socket), *words)

    def routes(self) -> dict[str, list[str]]:
        """Return BIRD's routes, with the gateways of each."""
        found = {}
        for family in ("-4", "-6"):
            text = run("ip", "-n", self.space.name, "-j", family, "route", "show", "proto", "bird") or "[]"
            for route in json.loads(text):
                hops = route.get("nexthops", [route])
                found[route["dst"]] = sorted(hop.get("gateway") or hop["via"]["host"] for hop in hops)
        return found

    def close(self) -> None:
        """End it."""
        if self.process is not None:
            end(self.process)
