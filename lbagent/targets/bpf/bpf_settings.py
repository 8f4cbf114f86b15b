"""What the parts of the BPF data plane need, out of the one configuration."""

from __future__ import annotations

import os

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.config import Config
from lbagent.errors import NotFound
from lbagent.kernel import mounts
from lbagent.kernel.sock_diag import netns_cookie
from lbagent.maps.specs import Sizes
from lbagent.model.address import parse_ip
from lbagent.model.extra_snat_sources import ExtraSnatSources
from lbagent.net.paths import PathSettings


def reply_ports(config: Config, before: tuple[int, int] | None) -> tuple[int, int]:
    """Return the first and the last port at which replies are recognised: flows have ports of the ranges `before`, too."""
    first, last = config.snat_port_range
    return (min(first, before[0]), max(last, before[1])) if before else (first, last)


def sizes(config: Config, reply_ports: tuple[int, int] | None = None) -> Sizes:
    """Return the sizes of the maps; 0 stands for "half of IPv4" and "as the flow table".

    Each SNAT port has a slot of its own: two ports of one backend in one slot would share their replies. Ports of extra SNAT
    addresses in too few slots would be of no use.
    """
    flow6 = config.flow6_table_size or config.flow_table_size // 2
    first, last = reply_ports or config.snat_port_range
    extra_snat = extra_snat_sources(config, ExtraSnatSources())
    addresses = 1 + max(len(extra_snat.ipv4), len(extra_snat.ipv6))
    ports = 1 << ((last - first + 1) * addresses - 1).bit_length()
    return Sizes(
        flow4=config.flow_table_size,
        flow6=flow6,
        snat4=max(config.snat_table_size or config.flow_table_size, ports),
        snat6=max(config.snat6_table_size or flow6, ports),
        services=config.max_service_slots,
        backends=config.max_backends,
        source_ranges=config.max_source_ranges,
        affinity=config.max_affinities,
        spill=config.max_spilled_flows,
        fragments=config.max_fragments,
        maglev_size=config.maglev_table_size,
    )


def extra_snat_sources(config: Config, before: ExtraSnatSources) -> ExtraSnatSources:
    """Return --snat-address; what was there `before` keeps its numbers."""
    return before.renumbered(parse_ip(text) for text in config.snat_address)


def program_settings(config: Config, extra_snat: ExtraSnatSources, reply_ports: tuple[int, int]) -> ProgramSettings:
    """Return what is folded into the programs; `extra_snat`: --snat-address with its numbers."""
    first, last = config.snat_port_range
    return ProgramSettings(
        snat_port_min=first,
        snat_port_max=last,
        reply_ports=reply_ports,
        reject_rate=config.reject_rate,
        external_clusterip=config.external_clusterip,
        strict_source=config.strict_source,
        echo_reply=config.echo_reply,
        new_flows=config.new_flows,
        handshake_sample=config.handshake_sample,
        timeout_new_s=config.timeout_new,
        timeout_tcp_s=config.timeout_tcp,
        timeout_udp_s=config.timeout_udp,
        timeout_closing_s=config.timeout_closing,
        extra_snat=extra_snat,
        announce=bool(config.announce),
        events=config.events,
        event_rate=config.event_rate,
        pools_alone=bool(config.apilb) and not config.has_manifests,
        netns_cookie=netns_cookie() if config.has_socket_programs else 0,
    )


def socket_cgroup(config: Config) -> str:
    """Return the cgroup that the socket programs are attached to; '': they are off. Raises NotFound without a mount of cgroup2."""
    if not config.has_socket_programs:
        return ""
    found = config.cgroup or mounts.first_cgroup()
    if not found:
        flag = "--apilb" if config.apilb else "--socket-lb"
        advice = "mount it" if config.apilb else "mount it, or use --no-socket-lb"
        raise NotFound(f"{flag} needs cgroup2, which is not mounted here; {advice}")
    return os.path.realpath(found)


def path_settings(config: Config, extra_snat: ExtraSnatSources) -> PathSettings:
    """Return what decides how a backend is reached; `extra_snat`: --snat-address with its numbers."""
    return PathSettings(
        config.name_of_node, config.node_addresses, config.pod_device, extra_snat, config.masquerade_all
    )


def longest_timeout_s(config: Config) -> int:
    """Return after how long an idle flow is surely forgotten."""
    return max(config.timeout_new, config.timeout_tcp, config.timeout_udp, config.timeout_closing)


def linger_s(config: Config) -> int:
    """Return after how long no flow of a frontend that was removed is left: a sweep ends them, each was last used before that."""
    return longest_timeout_s(config) + 2 * config.sweep_interval + 60
