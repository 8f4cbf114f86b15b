"""What the layers above the data planes need, out of the one configuration (of BPF: targets/bpf/bpf_settings.py)."""

from __future__ import annotations

from lbagent.agent.sources import source_names
from lbagent.config import CONTIV, PRIMARY, Config
from lbagent.config.renderer_words import AUTO, renderer_words
from lbagent.model.exclusion import Exclusion
from lbagent.model.service import CIDR
from lbagent.net.snapshot import EMPTY, NodeNetwork
from lbagent.objects.decode.report import special
from lbagent.resolve import Options


def resolve_options(config: Config, network: NodeNetwork = EMPTY) -> Options:
    """Return what resolve must know of this node. Rows of endpoints that still exist stay: flows live on."""
    return Options(
        config.name_of_node,
        config.node_addresses,
        keep_existing=True,
        sources=source_names(config),
        node_port_addresses=node_port_addresses(config, network),
        node_port_primary=config.nodeport_addresses == (PRIMARY,),
        external_ips=config.external_ips,
        external_ip_ranges=external_ip_ranges(config),
        host_addresses=host_addresses(network) if config.apilb else (),
        max_frontends=config.max_frontends_per_service,
        local_endpoint_weight=config.local_endpoint_weight,
        contiv_policies=config.policy_compat == CONTIV,
        exclusions=tuple(map(Exclusion.parse, config.exclude)),
        resets_dead_nodes=config.dead_node_flows == "reset",
        services=config.services,
        no_vip_checks=_no_vip_checks(config),
        no_passive_checks=_no_passive_checks(config),
    )


def _no_vip_checks(config: Config) -> str:
    """Return why probes cannot go through a Service, '' where they can."""
    if not _has_bpf(config):
        return "the data plane cannot send a probe to a certain backend; only bpf can"
    return "sockets of this node are connected to backends (--socket-lb, --apilb)" if config.has_socket_programs else ""


def _no_passive_checks(config: Config) -> str:
    """Return why flows tell nothing of backends, '' where they do."""
    if not _has_bpf(config):
        return "the data plane does not observe handshakes; only bpf does"
    return "" if config.handshake_sample else "no handshake is timed (--handshake-sample 0)"


def _has_bpf(config: Config) -> bool:
    """Return whether bpf serves; `auto` counts, as it is bpf where that works."""
    return any(word.name in ("bpf", AUTO) for word in renderer_words(config.renderer))


def external_ip_ranges(config: Config) -> tuple[CIDR, ...]:
    """Return --external-ip-cidr."""
    return tuple(map(CIDR.parse, config.external_ip_cidr))


def host_addresses(network: NodeNetwork) -> tuple[bytes, ...]:
    """Return the addresses of this host that a bind to all of them means. Not those of the loopback, nor link-local ones."""
    found = {item.address for item in network.addresses if not special(item.address)}
    return tuple(sorted(found, key=lambda each: (len(each), each)))


def node_port_addresses(config: Config, network: NodeNetwork) -> tuple[bytes, ...] | None:
    """Return the addresses of this node in the ranges of --nodeport-addresses; None without ranges. Never of the loopback."""
    if config.nodeport_addresses in ((), (PRIMARY,)):
        return None
    ranges = [CIDR.parse(text) for text in config.nodeport_addresses]
    own = sorted(
        {item.address for item in network.addresses if not special(item.address)}, key=lambda each: (len(each), each)
    )
    return tuple(address for address in own if any(cidr.contains(address) for cidr in ranges))
