"""A node and a router (top of rack) behind a switch, each in a namespace; the router is a real BIRD.

```
  node e0 ═══ port0 ─┐
                     sw0 (switch)       10.1.0.2, fd01::2 ── 10.1.0.1, fd01::1
  tor  e0 ═══ port1 ─┘
```
A port that leaves the bridge is a link that dies without loss of carrier.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.lab.bird_router import BirdRouter
from tests.lab.netns import Namespace, veth, wait_for
from tests.lab.topology import ROOT, end

NODE4, NODE6, TOR4, TOR6 = "10.1.0.2", "fd01::2", "10.1.0.1", "fd01::1"
_number = itertools.count()
NEIGHBOUR = """
protocol bgp node {{
  local as {asn};
  neighbor {node} as {node_asn};
  connect delay time 1; connect retry time 2;
  {options}
  ipv4 {{ import all; export none; {next_hop} }};
  ipv6 {{ import all; export none; }};
}}
"""


class RouterLab:
    """The laboratory of one test; `close` removes it."""

    def __init__(self) -> None:
        tag = f"bgp{next(_number)}-"
        self._closing = contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="lbbgp-"))
        self._closing.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.node, self.switch, self.tor = (self._namespace(role, tag) for role in ("node", "sw", "tor"))
        self.switch.ip("link add name sw0 type bridge", "link set sw0 up")
        for at, space in enumerate((self.node, self.tor)):
            veth(space, "e0", self.switch, f"port{at}")
            self.switch.ip(f"link set port{at} master sw0")
        self.node.ip(f"addr add {NODE4}/24 dev e0", f"addr add {NODE6}/64 dev e0 nodad")
        self.tor.ip(f"addr add {TOR4}/24 dev e0", f"addr add {TOR6}/64 dev e0 nodad")
        self.state = self.folder / "state"
        self.router = BirdRouter(self.tor, self.folder)
        self._closing.callback(self.router.close)
        self.speaker: subprocess.Popen[str] | None = None

    def _namespace(self, role: str, tag: str) -> Namespace:
        space = Namespace(role, tag)
        self._closing.callback(space.delete)
        return space

    def close(self) -> None:
        if self.speaker is not None:
            end(self.speaker)
        self._closing.close()

    # --- the router ---

    def start_router(
        self, *, asn: int = 64513, node_asn: int = 64512, node: str = NODE4, options: str = "", next_hop: str = ""
    ) -> None:
        text = NEIGHBOUR.format(asn=asn, node_asn=node_asn, node=node, options=options, next_hop=next_hop)
        self.router.start(TOR4, text)

    def ask_router(self, *words: str) -> str:
        return self.router.ask(*words)

    def routes(self) -> dict[str, str]:
        """Return the routes of the router's BIRD in its kernel, with their gateways."""
        return {route: gateway for route, (gateway,) in self.router.routes().items()}

    def wait_routes(self, *addresses: str, timeout_s: float = 30.0) -> dict[str, str]:
        wanted = {str(ipaddress.ip_address(each)) for each in addresses}
        wait_for(lambda: self.routes().keys() == wanted, f"the routes {sorted(wanted)} at the router", timeout_s)
        return self.routes()

    def session_since(self) -> str:
        """Return since when the router has the session, by its own clock; '' for none."""
        match = re.search(
            r"^node +BGP +\S+ +up +(\S+) +Established", self.ask_router("show", "protocols", "node"), re.MULTILINE
        )
        return match[1] if match else ""

    def cut(self) -> None:
        """Make the node's link fail silently."""
        self.switch.ip("link set port0 nomaster")

    def mend(self) -> None:
        self.switch.ip("link set port0 master sw0")

    # --- the speaker ---

    def write_pools(self, peer: str = "", *, bgp: str = "", address: str = TOR4, asn: int = 64513) -> Path:
        path = self.folder / "pools.yaml"
        peers = f"[{{address: '{address}', asn: {asn}, {peer}}}]"
        path.write_text(f"bgp: {{localASN: 64512, {bgp} peers: {peers}}}\n")
        return path

    def start_speaker(self) -> None:
        log = (self.folder / "speaker.log").open("a")
        argv = [
            sys.executable,
            "-m",
            "tests.announce.bgp.speaker_process",
            str(self.state),
            str(self.folder / "pools.yaml"),
        ]
        self.speaker = self.node.popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        log.close()
        assert self.speaker.stdout is not None
        assert self.speaker.stdout.readline() == "ready\n", self.speaker_log()

    def speaker_log(self) -> str:
        return (self.folder / "speaker.log").read_text()

    def tell(self, do: str, **words: Any) -> Any:
        """Send the speaker a command and return its answer."""
        assert self.speaker is not None
        assert self.speaker.stdin is not None
        assert self.speaker.stdout is not None
        self.speaker.stdin.write(json.dumps({"do": do, **words}) + "\n")
        self.speaker.stdin.flush()
        line = self.speaker.stdout.readline()
        assert line, self.speaker_log()
        return json.loads(line)

    def announce(self, *addresses: str) -> list[str]:
        problems: list[str] = self.tell("routes", addresses=addresses)
        return problems

    def peer(self) -> dict[str, Any]:
        (row,) = self.tell("peers")
        found: dict[str, Any] = row
        return found

    def wait_reason(self, words: str, timeout_s: float = 60.0) -> str:
        """Wait until the only peer is down for a reason with these words."""
        last = ""

        def seen() -> bool:
            nonlocal last
            last = self.peer().get("reason", "")
            return words in last

        try:
            wait_for(seen, words, timeout_s, 0.2)
        except Exception:
            raise AssertionError(f"{words!r} was expected, the reason is {last!r}\n{self.bird_log()}") from None
        return last

    def kill_speaker(self) -> None:
        assert self.speaker is not None
        self.speaker.send_signal(signal.SIGKILL)
        self.speaker.wait()

    def bird_pid(self) -> int:
        """Return the node's BIRD, 0 when there is none."""
        socket = str(self.state / "bird" / "bird.ctl")
        for pid in self.node.pids():
            with contextlib.suppress(OSError):
                words = Path("/proc", str(pid), "cmdline").read_text().split("\0")
                if words[0].endswith("bird") and socket in words:
                    return pid
        return 0

    def bird_log(self) -> str:
        path = self.state / "bird" / "bird.log"
        return path.read_text() if path.exists() else ""
