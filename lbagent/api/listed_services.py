"""The frontends that are listed, one at a time: capabilities/services.py makes their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from lbagent.errors import ConfigError
from lbagent.model.address import L3n4Addr, L4Type, parse_ip
from lbagent.model.backend import Backend
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import SVC, SVCType
from lbagent.model.state import State
from lbagent.targets.data_plane import ShownState

NON_ROUTABLE = "non-routable"  # the flag's word (model/flags.py)


class ListedMember(Struct, frozen=True, gc=False):
    """A backend of a frontend. `selectable`: new flows may take it."""

    backend: Backend
    selectable: bool


class ListedService(Struct, frozen=True, gc=False):
    """A frontend. `reached`: sources outside the node reach it, though it is a ClusterIP."""

    svc: SVC
    reached: bool = False

    @property
    def flags(self) -> Sequence[str]:
        """The flags that have an effect: with `reached` the programs pass over `non-routable`."""
        return _words(self.svc.flags, self.reached)

    @property
    def members(self) -> list[ListedMember]:
        """The backends: slots in order, then those without a slot."""
        svc = self.svc
        selectable = [ListedMember(each, True) for each in svc.selectable]
        return selectable + [ListedMember(each, False) for each in (*svc.unselectable, *svc.slotless)]


@lru_cache(maxsize=256)  # 10,000 frontends have a few different flags
def _words(flags: ServiceFlags, reached: bool) -> tuple[str, ...]:
    return tuple(word for word in flags.words() if not (reached and word == NON_ROUTABLE))


class VIP(NamedTuple):
    """A VIP as an operator writes it: an address, perhaps with a port, perhaps with a protocol."""

    address: bytes
    port: int | None = None
    protocol: L4Type | None = None

    @classmethod
    def parse(cls, text: str) -> VIP:
        """Read `10.96.0.1`, `10.96.0.1:80`, `[fd00::1]:80/TCP`. Raises ValueError."""
        try:
            return cls(parse_ip(text.removeprefix("[").removesuffix("]")))
        except ValueError:
            address = L3n4Addr.parse(text)
        return cls(address.address, address.port, address.protocol if "/" in text else None)

    def is_of(self, frontend: L3n4Addr) -> bool:
        """Return whether a frontend has this VIP."""
        return (
            frontend.address == self.address
            and (self.port is None or frontend.has_port(self.port))
            and self.protocol in (None, frontend.protocol)
        )


def listed_services(
    state: State, namespace: str = "", name: str = "", vip: VIP | None = None, *, external_clusterip: bool = False
) -> Iterator[ListedService]:
    """Yield the frontends in dump order, wildcard rows left out; '' and None = any."""
    for svc in state.services:
        if svc.wildcard or (namespace and svc.name.namespace != namespace) or (name and svc.name.name != name):
            continue
        if vip is None or vip.is_of(svc.frontend):
            yield ListedService(svc, external_clusterip and svc.type is SVCType.CLUSTER_IP)


class ServedServices:
    """The frontends of a data plane."""

    def __init__(self, plane: ShownState, reaches_clusterips: Callable[[], bool]) -> None:
        """`reaches_clusterips` returns whether sources outside the node reach ClusterIPs."""
        self._plane, self._reaches_clusterips = plane, reaches_clusterips

    def listed(self, namespace: str, name: str, vip: str) -> Iterator[ListedService]:
        """Return the frontends that are in the maps; '' = any. Raises ConfigError for a VIP that is no address."""
        try:
            wanted = VIP.parse(vip) if vip else None
        except ValueError as error:
            raise ConfigError(f"vip: {error}") from None
        reached = self._reaches_clusterips()
        return listed_services(self._plane.current_state, namespace, name, wanted, external_clusterip=reached)
