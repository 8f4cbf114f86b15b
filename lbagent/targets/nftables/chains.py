"""The chains of the table. Pure.

Those of a Service depend on how many slots it has and on what is checked first, not on the Service.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from msgspec import Struct

from lbagent.model.address import ALL_PROTOCOLS, L4Type
from lbagent.model.family import Family
from lbagent.model.service import CIDR
from lbagent.targets.nftables.map_specs import DEFAULT_TABLE, INSIDE_OFFSET
from lbagent.targets.nftables.statements import (
    Chain,
    Rule,
    begins_no_connection,
    came_in_by,
    destination,
    dnat,
    from_this_node,
    frontend,
    goto,
    hashed_slot,
    input_device,
    is_family,
    is_in,
    is_protocol,
    is_to,
    is_translated,
    is_udp_port,
    jump,
    limit_over,
    masquerade,
    note,
    original_destination,
    original_frontend,
    protocol,
    random_slot,
    reset,
    rule,
    source,
    source_port,
    unreachable,
    verdict,
    verdict_of,
)

DSTNAT, SRCNAT = -100, 100  # the kernel's priorities NF_IP_PRI_NAT_DST and NF_IP_PRI_NAT_SRC
DEFAULT_PRIORITY = -5  # relative to them: before kube-proxy's chains, which are at dstnat and srcnat
VXLAN_PORT = 4789  # RFC 7348 §5
HASH_SEED = 0x6C62  # the same on every node
REFUSED = "goto refused"
DROPPED = "drop"
SKIP = "skip"  # a check: clients of the ranges use the frontend as if it had no row for what is inside
ENDED = "goto ended"
EGRESS = "egress"  # the chain of --egress-snat
LEFT = "left"  # the chain of a table that has nothing but connections from before


Hashed = Literal["", "flow", "client"]  # what of a packet gives the slot; "": a random number does
_SELECTS: dict[Hashed, str] = {"": "random", "flow": "maglev", "client": "client"}


class TableSettings(Struct, frozen=True, kw_only=True):
    """What the rules depend on, beside Services. `pod_devices` are patterns of --pod-device."""

    table: str = DEFAULT_TABLE
    priority: int = DEFAULT_PRIORITY
    pod_devices: tuple[str, ...] = ()
    masquerade_all: bool = False
    external_clusterip: bool = True
    reject_rate: int = 1000
    with_device_set: bool = False  # devices of pods are given by name, also without a pattern
    families: frozenset[Family] = frozenset(Family)  # whose frontends are served
    egress_snat: bool = False
    cluster_cidrs: tuple[CIDR, ...] = ()
    # As text: nft 1.0.6 ends with a failed assertion where a rule notes IPv6 addresses in a map. A hash of the client's address
    # then stands in for affinity, which holds as long as the set of backends does.
    as_text: bool = False
    # While bpf has flows from before (left_bpf.py): only a SYN begins a connection, and source ports are none of bpf's.
    beside_bpf: tuple[int, int] | None = None  # the first and the last source port
    left_to_bpf: bool = False  # bpf has what begins: only connections from before are translated (left_nft.py)


class Way(NamedTuple):
    """How packets of a frontend find a backend: the name of a chain, and the chains that it needs."""

    family: Family
    slots: int
    hashed: Hashed = ""
    inside: bool = False
    sticky: bool = False
    check: str = ""  # allow, deny, skip: source ranges first

    @property
    def name(self) -> str:
        """The chain that begins it."""
        return "-".join(word for word in (self.check, "sticky" if self.sticky else "", self._select) if word)

    @property
    def _select(self) -> str:
        word = _SELECTS[self.hashed]
        return f"{word}{self.family.digit}-{self.slots}{'-inside' if self.inside else ''}"

    def chains(self) -> Iterator[tuple[str, Chain]]:
        """Yield its chains: each after those that it leads to."""
        family, offset = self.family, INSIDE_OFFSET if self.inside else 0
        slot = random_slot(self.slots, offset)
        if self.hashed:
            key = (source(family), source_port()) if self.hashed == "flow" else (source(family),)
            slot = hashed_slot(key, self.slots, HASH_SEED, offset)
        name = self._select
        # A packet that met the old verdict and the new backends is sent again by its client.
        yield (
            name,
            Chain((rule(dnat(family, (*frontend(family), slot), f"backends{family.digit}")), rule(verdict(DROPPED)))),
        )
        if self.sticky:
            known = dnat(family, (source(family), *frontend(family)), f"affinity{family.digit}")
            yield f"sticky-{name}", Chain((rule(known), rule(goto(name))))
            name = f"sticky-{name}"
        if self.check:
            yield f"{self.check}-{name}", _checked(family, self.check, name)


class Refusal(NamedTuple):
    """Packets of a frontend without backends that has source ranges: only clients that are admitted get an answer."""

    family: Family
    check: str  # allow, deny, skip

    @property
    def name(self) -> str:
        """The name of the chain."""
        return f"{self.check}-refused{self.family.digit}"

    def chains(self) -> Iterator[tuple[str, Chain]]:
        """Yield the chain. A local redirect without a pod drops."""
        yield self.name, _checked(self.family, self.check, "ended" if self.check == SKIP else "refused")


def _checked(family: Family, check: str, chain: str) -> Chain:
    """Return a chain that leads admitted clients to another one, and drops the packets of others; those that skip go on."""
    listed = is_in((*frontend(family), source(family)), f"ranges{family.digit}", inverted=check == "allow")
    return Chain((rule(listed, goto("services") if check == SKIP else verdict(DROPPED)), rule(goto(chain))))


class Sticky(NamedTuple):
    """A chain that notes clients' backends for a time."""

    family: Family
    timeout_s: int

    @property
    def name(self) -> str:
        """The name of the chain."""
        return f"note{self.family.digit}-{self.timeout_s}"

    def chains(self) -> Iterator[tuple[str, Chain]]:
        """Yield the chain."""
        rules = [
            rule(
                is_protocol(kind), note(self.family, f"affinity{self.family.digit}", self.timeout_s, kind.value.lower())
            )
            for kind in ALL_PROTOCOLS
        ]
        yield self.name, Chain(tuple(rules))


Need = Way | Refusal | Sticky


def is_plain_pattern(pattern: str) -> bool:
    """Whether nft can match the names of a pattern: a name, or the beginning of one and `*`."""
    return not set(pattern.removesuffix("*")) & set('*?[]\\"')


def base_chains(settings: TableSettings) -> Mapping[str, Chain]:
    """Return the chains that are always there, each after those that it leads to."""
    chains: dict[str, Chain] = {"refused": Chain(tuple(_refused(settings.reject_rate)))}
    chains["ended"] = Chain((rule(begins_no_connection(), goto("refused")), rule(verdict(DROPPED))))
    chains["services"] = Chain(tuple(_services()))
    inside = [rule(verdict_of(frontend(family), f"internal{family.digit}")) for family in Family]
    chains["inside"] = Chain((*inside, rule(goto("services"))))
    outside, ports = "services", settings.beside_bpf
    if not settings.external_clusterip:
        outside = "outside"
        chains[outside] = Chain((*_cluster_ips(verdict(DROPPED)), rule(goto("services"))))
    pods = [came_in_by(pattern) for pattern in settings.pod_devices if is_plain_pattern(pattern)]
    if settings.with_device_set or len(pods) < len(settings.pod_devices):
        pods.append(is_in((input_device(),), "pod_devices"))
    for family in Family:
        chains[f"sticky{family.digit}"] = Chain(tuple(_original(family, f"sticky{family.digit}")))
        keeps = [] if settings.masquerade_all else pods
        chains[f"source{family.digit}"] = Chain(
            (
                rule(is_in((source(family), destination(family)), f"hairpin{family.digit}"), masquerade(ports)),
                *(rule(from_this_node(), masquerade(ports)) for _ in range(ports is not None)),
                rule(is_in((destination(family),), f"local{family.digit}"), verdict("return")),
                *(rule(pod, verdict("return")) for pod in keeps),
                rule(masquerade(ports)),
            )
        )
        ours = rule(is_in((original_destination(family),), f"cluster_ips{family.digit}"), goto(f"source{family.digit}"))
        external = _original(family, f"external{family.digit}", f"source{family.digit}")
        chains[f"translated{family.digit}"] = Chain((rule(jump(f"sticky{family.digit}")), ours, *external))
    dstnat, srcnat = DSTNAT + settings.priority, SRCNAT + settings.priority
    # bpf sees packets that come in before the chains do, and those of this node's processes after them
    first = [] if ports is None else [rule(begins_no_connection(), verdict("accept"))]
    arriving = (*(rule(pod, goto("inside")) for pod in pods), rule(goto(outside)))
    if settings.left_to_bpf:  # a segment of a connection that was deleted meets a backend, which resets it
        chains[LEFT] = Chain((rule(begins_no_connection(), goto("inside")),))
        chains["arriving"] = Chain(arriving)
        # bpf took all datagrams but those of conversations from before (bpf/left_datagrams.py): one of them may have just expired
        datagrams = rule(is_protocol(L4Type.UDP), goto("arriving"))
        chains["prerouting"] = Chain((datagrams, rule(goto(LEFT))), "prerouting", dstnat)
        chains["output"] = Chain((rule(goto(LEFT)),), "output", dstnat)
    else:
        chains["prerouting"] = Chain(arriving, "prerouting", dstnat)
        chains["output"] = Chain((*first, rule(goto("inside"))), "output", dstnat)
    leaving = tuple(_translated("translated"))
    if settings.egress_snat:  # then no Service is served
        chains[EGRESS] = Chain(tuple(_egress(settings)))
        leaving = (rule(goto(EGRESS)),)
    chains["postrouting"] = Chain(leaving, "postrouting", srcnat)
    chains["input"] = Chain(tuple(_translated("sticky")), "input", srcnat)
    return chains


def _egress(settings: TableSettings) -> Iterator[Rule]:
    """Yield what gets the node's address: all but packets within the cluster, of nodes, and of the overlay network.

    A connection that is older than connection tracking stays as it is. Ranges of one family leave out the other one.
    """
    yield rule(begins_no_connection(), verdict("return"))
    ranged = {Family.of(network.network) for network in settings.cluster_cidrs}
    families = sorted(settings.families & ranged if ranged else settings.families)
    for family in families:
        for address in (source(family), destination(family)):
            yield rule(is_in((address,), f"nodes{family.digit}"), verdict("return"))
        for network in settings.cluster_cidrs:
            if Family.of(network.network) is family:
                yield rule(is_to(network), verdict("return"))
    yield rule(is_udp_port(VXLAN_PORT), verdict("return"))
    for family in families:
        yield rule(is_family(family), masquerade())


def _refused(rate: int) -> Iterator[Rule]:
    if rate:
        yield rule(limit_over(rate), verdict(DROPPED))
        yield rule(is_protocol(L4Type.TCP), reset())
        yield rule(unreachable())
    else:
        yield rule(verdict(DROPPED))


def _services() -> Iterator[Rule]:
    for family in Family:
        yield rule(verdict_of(frontend(family), f"frontends{family.digit}"))
    yield from _cluster_ips(goto("refused"))


def _cluster_ips(*statements: object) -> Iterator[Rule]:
    """Yield rules for what is sent to ClusterIPs, by a protocol that has ports."""
    for family in Family:
        address = is_in((destination(family),), f"cluster_ips{family.digit}")
        yield Rule((is_in((protocol(),), "protocols"), address, *statements))  # type: ignore[arg-type]


def _original(family: Family, name: str, chain: str = "") -> Iterator[Rule]:
    """Yield rules by the frontend that the client sent to: nft wants to know whose port it is."""
    for kind in ALL_PROTOCOLS:
        if chain:
            yield rule(is_protocol(kind), is_in(original_frontend(family), name), goto(chain))
        else:
            yield rule(is_protocol(kind), verdict_of(original_frontend(family), name))


def _translated(chain: str) -> Iterable[Rule]:
    for family in Family:
        yield rule(is_translated(), is_family(family), goto(f"{chain}{family.digit}"))
