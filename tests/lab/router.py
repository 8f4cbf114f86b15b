"""A real router: miniupnpd between a LAN and a WAN, each a network namespace, with the host that runs the controller on the LAN.

```
  outside 11.0.0.2 ──w0═tw0── router ──tl0═br0 (bridge) ═ l0── host  192.0.2.101, 192.0.2.100
                    11.0.0.1         192.0.2.1          ═ o0── other 192.0.2.102
```
11.0.0.0/8 is not reserved: miniupnpd maps no ports at a private WAN address.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.lab import netns
from tests.lab.netns import LabError, Namespace, run, veth, wait_for
from tests.lab.topology import end, uninterrupted

PROGRAM = "miniupnpd"
ROUTER, HOST, HOST2, OTHER, WAN, OUTSIDE = (
    "192.0.2.1",
    "192.0.2.101",
    "192.0.2.100",
    "192.0.2.102",
    "11.0.0.1",
    "11.0.0.2",
)
RULES = """
table inet filter {
  chain miniupnpd {}
  chain prerouting_miniupnpd {}
  chain postrouting_miniupnpd {}
  chain forward { type filter hook forward priority 0; policy accept; jump miniupnpd; }
  chain prerouting { type nat hook prerouting priority -100; jump prerouting_miniupnpd; }
  chain postrouting { type nat hook postrouting priority 100; jump postrouting_miniupnpd; oifname "tw0" masquerade; }
}
"""
CONFIG = """
ext_ifname=tw0
listening_ip=tl0
http_port={port}
enable_upnp={upnp}
enable_natpmp={natpmp}
secure_mode={secure}
uuid=5f2c3a9e-0c54-4a8e-9a37-3a2f1d6f0b7e
lease_file={folder}/leases
upnp_table_name=filter
upnp_nat_table_name=filter
upnp_forward_chain=miniupnpd
upnp_nat_chain=prerouting_miniupnpd
upnp_nat_postrouting_chain=postrouting_miniupnpd
allow 53-9999 192.0.2.0/24 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""
ACTION = re.compile(r"SOAPAction: .*#(\w+)")


class Router:
    """The namespaces and the program; a context manager that removes them."""

    port = 5000  # of its description
    lan_device = "l0"  # of the host
    url = f"http://{ROUTER}:{port}/rootDesc.xml"

    def __init__(self, tag: str = "") -> None:
        self.tag = tag
        self.process: subprocess.Popen[str] | None = None
        self.spaces: list[Namespace] = []

    def __enter__(self) -> Self:
        netns.sweep()
        try:
            with uninterrupted():
                self.folder = Path(tempfile.mkdtemp(prefix=f"{netns.FOLDER}{netns.os.getpid()}-"))
                self._build()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        with uninterrupted():
            self.kill()
            for space in self.spaces:
                space.delete()
            shutil.rmtree(self.folder, ignore_errors=True)

    def space(self, role: str) -> Namespace:
        space = Namespace(role, self.tag)
        self.spaces.append(space)
        return space

    def _build(self) -> None:
        self.router, self.host, self.other, self.outside = map(self.space, ("router", "host", "other", "outside"))
        self.router.sysctl("ipv4/ip_forward", 1)
        self.router.ip("link add br0 type bridge mcast_snooping 0", "link set br0 name tl0", "link set tl0 up")
        self.join(self.host, self.lan_device, HOST)
        self.host.ip(f"addr add {HOST2}/24 dev {self.lan_device}")
        self.join(self.other, "o0", OTHER)
        self.router.ip(f"addr add {ROUTER}/24 dev tl0")
        veth(self.router, "tw0", self.outside, "w0")
        self.router.ip(f"addr add {WAN}/24 dev tw0")
        self.outside.ip(f"addr add {OUTSIDE}/24 dev w0", "addr add 11.0.1.2/24 dev w0")
        for space in (self.host, self.other):
            space.ip(f"route add default via {ROUTER}")
        self.nft(RULES)

    def join(self, space: Namespace, device: str, address: str) -> None:
        """Connect a namespace to the LAN."""
        veth(self.router, f"br-{device}", space, device)
        self.router.ip(f"link set br-{device} master tl0")
        space.ip(f"addr add {address}/24 dev {device}")

    def nft(self, text: str) -> str:
        with self.router.entered():
            return run("nft", "-f", "-", text=text)

    # --- the program ---

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def start(self, *, upnp: bool = True, natpmp: bool = True, secure: bool = True) -> None:
        """Start it, and wait until it serves."""
        words = {True: "yes", False: "no"}
        conf, pid = self.folder / "conf", self.folder / "pid"
        conf.write_text(
            CONFIG.format(
                folder=self.folder, upnp=words[upnp], natpmp=words[natpmp], secure=words[secure], port=self.port
            )
        )
        (self.folder / "leases").touch()
        with self.log.open("a") as log:
            argv = [PROGRAM, "-d", "-f", str(conf), "-P", str(pid)]
            self.process = self.router.popen(argv, stdout=log, stderr=log)
        for protocol, is_on in (("tcp", upnp), ("udp", natpmp)):  # it opens the two in sequence
            if is_on:
                wait_for(partial(self.router.call, _listens, protocol), f"miniupnpd's {protocol} port", 20)

    def kill(self) -> None:
        """End it as by a power cut: its mappings are lost."""
        if self.process is not None:
            self.process.kill()
            end(self.process)
            self.process = None
            self.flush()

    def flush(self) -> None:
        """Lose every mapping."""
        for chain in ("miniupnpd", "prerouting_miniupnpd", "postrouting_miniupnpd"):
            self.nft(f"flush chain inet filter {chain}\n")
        (self.folder / "leases").write_text("")

    def calls(self) -> Counter[str]:
        """Return the number of requests of each action."""
        return Counter(ACTION.findall(self.log.read_text()))

    def changes(self) -> Counter[str]:
        """Return how often mappings were created and removed."""
        return Counter({name: count for name, count in self.calls().items() if name.startswith(("Add", "Delete"))})

    def set_wan(self, address: str) -> None:
        """Change its WAN address, as a provider does."""
        self.router.ip("addr flush dev tw0 scope global", f"addr add {address}/24 dev tw0")


def _listens(protocol: str) -> bool:
    """Return whether a port of the program is open in the calling thread's namespace: 5000 TCP, 5351 UDP."""
    port = {"tcp": ":1388", "udp": ":14E7"}[protocol]
    return any(port in Path("/proc/thread-self/net", name).read_text() for name in (protocol, f"{protocol}6"))


def need_router() -> None:
    """Return what is missing."""
    if shutil.which(PROGRAM) is None:
        raise LabError("miniupnpd is missing: make setup installs it")
