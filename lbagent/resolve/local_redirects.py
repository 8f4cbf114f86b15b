"""Local redirects: which frontends their policies take, and to which Pods of this node. Pure.

A policy takes frontends of its own namespace's Service, or an address that no other namespace uses. Of two policies with one
frontend the older has it. local_redirect_rows.py has the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from lbagent.model.address import L3n4Addr, L4Type, format_ip
from lbagent.model.backend import DEFAULT_BACKEND_WEIGHT
from lbagent.model.exclusion import exclusion_of
from lbagent.model.family import Family
from lbagent.model.message import Message
from lbagent.model.select import EndpointInfo
from lbagent.model.service import CIDR
from lbagent.objects.records import LocalRedirect, Pod, RedirectPort, Service
from lbagent.resolve.frontends import LocalNode
from lbagent.resolve.overrides import Overrides
from lbagent.textfile.field_path import FieldPath, path_text

NOT_REDIRECTED = "it is not redirected"
_FRONTEND: FieldPath = ("spec", "redirectFrontend")


class Redirect(Struct, frozen=True, gc=False):
    """The Pods of this node that get what is inside and uses a frontend; `endpoints` has also those that are not ready.

    `skipping`: addresses whose packets go to the frontend's original Service.
    """

    policy: LocalRedirect
    endpoints: tuple[EndpointInfo, ...] = ()
    skipping: tuple[CIDR, ...] = ()


class LocalRedirects(Struct, frozen=True):
    """The redirect of each frontend; the owner of those that are no Service's; the problems by owner."""

    by_frontend: Mapping[L3n4Addr, Redirect] = {}
    of_addresses: Mapping[str, tuple[L3n4Addr, ...]] = {}
    messages: Mapping[str, list[Message]] = {}


class Surroundings(NamedTuple):
    """The objects around the policies, as far as policies depend on them.

    `owner_of` returns the Service that has a frontend, `users_of` the Services of a backend; `host_ports` are HostPort frontends.
    """

    node: LocalNode
    pods: Collection[Pod]  # of this node
    services: Mapping[str, Service]
    overrides: Overrides
    owner_of: Callable[[L3n4Addr], str | None]
    users_of: Callable[[L3n4Addr], Iterable[str]]
    host_ports: Collection[L3n4Addr]


def owner_name(policy: LocalRedirect) -> str:
    """Return the owner of a policy's messages and of its frontends that are no Service's."""
    return f"redirect:{policy.kind}/{policy.key}"


def local_redirects(policies: Iterable[LocalRedirect], around: Surroundings) -> LocalRedirects:
    """Return what all policies do on this node."""
    taken: dict[L3n4Addr, Redirect] = {}
    of_addresses: dict[str, tuple[L3n4Addr, ...]] = {}
    messages: dict[str, list[Message]] = {}
    for policy in sorted(policies, key=_seniority):
        claims = _Claims(policy, around)
        mine = claims.of_service() if policy.address is None else claims.of_address(policy.address)
        named: set[str] = set()
        pods = [pod for pod in around.pods if policy.selects(pod)]
        for frontend, target, path in mine:
            if (holder := taken.get(frontend)) is not None:
                other = holder.policy
                if owner_name(other) not in named:
                    named.add(owner_name(other))
                    claims.report(path, f"{frontend.with_protocol()} is held by {_why(other, policy)}", NOT_REDIRECTED)
                continue
            taken[frontend] = _redirect(policy, pods, frontend.family, target, around)
        messages[owner_name(policy)] = claims.messages
        if policy.address is not None:
            own = [each for each, _, _ in mine if taken[each].policy is policy and around.owner_of(each) is None]
            of_addresses[owner_name(policy)] = tuple(own)
    return LocalRedirects(taken, of_addresses, messages)


def _seniority(policy: LocalRedirect) -> tuple[bool, float, str, str, str]:
    return (not policy.created, policy.created, policy.namespace, policy.name, policy.kind)


def _why(holder: LocalRedirect, loser: LocalRedirect) -> str:
    who = f"{holder.kind} {holder.key}"
    if holder.created != loser.created:  # one without a time counts as the youngest
        return f"the older {who}"
    return f"{who}, which is of the same age and the first by namespace/name"


def _redirect(
    policy: LocalRedirect, pods: Iterable[Pod], family: Family, target: RedirectPort, around: Surroundings
) -> Redirect:
    found: list[EndpointInfo] = []
    skipping: list[CIDR] = []
    for pod in sorted(pods, key=lambda each: each.key):
        addresses = [address for address in pod.ips if Family.of(address) is family]
        if not addresses:
            continue
        backend = L3n4Addr(addresses[0], target.port, target.protocol)
        skipping += [CIDR(address, len(address) * 8) for address in addresses]
        found.append(
            EndpointInfo(
                backend,
                ready=pod.ready and not pod.terminating,
                serving=pod.ready,
                terminating=pod.terminating,
                local=True,
                node_name=pod.node,
                zone=around.node.zone,
                weight=DEFAULT_BACKEND_WEIGHT if pod.weight is None else pod.weight,
                override=around.overrides.state_of(backend, pod.key),
            )
        )
    skips = tuple(sorted(set(skipping), key=lambda cidr: cidr.sort_key)) if policy.skips_backends else ()
    return Redirect(policy, tuple({info.address: info for info in found}.values()), skips)


_Claim = tuple[L3n4Addr, RedirectPort, FieldPath]  # a frontend, the port of the Pods, and where the policy names it


class _Claims:
    """The frontends that one policy may take, and its problems."""

    def __init__(self, policy: LocalRedirect, around: Surroundings) -> None:
        self.messages: list[Message] = []
        self._policy = policy
        self._around = around

    def report(self, path: FieldPath, problem: str, kept: str, *, warning: bool = False) -> None:
        """Add a problem."""
        policy, origin = self._policy, self._policy.origin
        self.messages.append(
            Message(problem, kept, path_text(path), policy.kind, policy.key, origin.file, origin.line, warning)
        )

    def of_service(self) -> list[_Claim]:
        """Return the claims to the ClusterIPs of the Service."""
        policy, around = self._policy, self._around
        key, path = f"{policy.namespace}/{policy.service}", (*_FRONTEND, "serviceMatcher")
        service = around.services.get(key)
        if service is None:
            problem = f"there is no Service {key}"
            self.report((*path, "serviceName"), problem, "nothing is redirected until there is one", warning=True)
            return []
        if not service.cluster_ips:
            self.report((*path, "serviceName"), f"Service {key} has no ClusterIP", "nothing is redirected")
            return []
        if service.excluded:
            self.report((*path, "serviceName"), f"Service {key} is excluded", "nothing is redirected", warning=True)
            return []
        ports = [RedirectPort(port.port, port.protocol, port.name.lower()) for port in service.ports]
        wanted = list(self._listed(ports, key, path)) if policy.frontend_ports else [(port, path) for port in ports]
        found: list[_Claim] = []
        has_target = False
        for port, at in wanted:
            target = _target(policy, port, [each for each, _ in wanted])
            if target is None:
                if policy.frontend_ports:
                    self._report_no_target(port, at)
                continue
            has_target = True
            for address in service.cluster_ips:
                frontend = L3n4Addr(address, port.port, port.protocol)
                if around.owner_of(frontend) == key:
                    found.append((frontend, target, at))
        if not has_target and not policy.frontend_ports:
            self._report_no_target(None, path)
        return found

    def _listed(self, ports: list[RedirectPort], key: str, path: FieldPath) -> Iterator[tuple[RedirectPort, FieldPath]]:
        """Yield the ports that the policy lists; each has the name that the policy, else the Service gives it."""
        known = {(port.port, port.protocol): port for port in ports}
        for index, listed in enumerate(self._policy.frontend_ports):
            at = (*path, "toPorts", index)
            port = known.get((listed.port, listed.protocol))
            if port is None:
                self.report(at, f"Service {key} has no port {listed.port}/{listed.protocol}", NOT_REDIRECTED)
            else:
                yield (listed if listed.name else port), at

    def of_address(self, address: bytes) -> list[_Claim]:
        """Return the claims to the ports of an address."""
        found: list[_Claim] = []
        for index, port in enumerate(self._policy.frontend_ports):
            at = (*_FRONTEND, "addressMatcher", "toPorts", index)
            frontend = L3n4Addr(address, port.port, port.protocol)
            if exclusion_of(frontend, self._around.node.exclusions):
                continue
            if why := self._foreign(frontend):
                self.report((*_FRONTEND, "addressMatcher", "ip"), f"{frontend.with_protocol()} {why}", NOT_REDIRECTED)
                continue
            target = _target(self._policy, port, self._policy.frontend_ports)
            if target is None:
                self._report_no_target(port, at)
            else:
                found.append((frontend, target, at))
        return found

    def _foreign(self, frontend: L3n4Addr) -> str:
        """Return why the policy must not take a frontend, '' if it may: traffic of another namespace, or of the node."""
        around, namespace, address = self._around, self._policy.namespace, frontend.address
        holder = around.owner_of(frontend)
        of_address = holder or around.owner_of(L3n4Addr(address, 0, L4Type.NONE))
        if of_address and not of_address.startswith(f"{namespace}/"):
            return f"is at an address of Service {of_address}, which is in another namespace"
        if of_address and not holder:
            return f"is no port of Service {of_address}, whose address it is"
        if holder:
            return ""
        if frontend in around.host_ports:
            return "is the hostPort of a Pod"
        if address in around.node.addresses:
            return f"is at {format_ip(address)}, an address of this node"
        for user in around.users_of(frontend):
            if not user.startswith((f"{namespace}/", "redirect:", f"pod:{namespace}/")):
                return f"is a backend of {user.removeprefix('pod:')}, which is in another namespace"
        for pod in around.pods:
            if address in pod.ips and pod.namespace != namespace:
                return f"is at an address of Pod {pod.key}, which is in another namespace"
        return ""

    def _report_no_target(self, port: RedirectPort | None, path: FieldPath) -> None:
        what = f"{port.port}/{port.protocol} has no" if port else "no port of the Service has a"
        problem = (
            f"{what} counterpart in redirectBackend.toPorts: the port of its name and protocol, without names the only "
            "one of its protocol"
        )
        self.report(path, problem, NOT_REDIRECTED)


def _target(policy: LocalRedirect, port: RedirectPort, among: Collection[RedirectPort]) -> RedirectPort | None:
    """Return the port of the Pods for a port of the frontend: by name, without names the only one of the protocol."""
    same = [each for each in policy.backend_ports if each.protocol is port.protocol]
    for each in same:
        if each.name and each.name == port.name:
            return each
    is_only = len(same) == 1 and sum(each.protocol is port.protocol for each in among) == 1
    return same[0] if is_only and not (same[0].name and port.name) else None
