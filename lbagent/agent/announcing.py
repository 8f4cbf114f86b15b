"""Announcing addresses (--announce) as part of the agent: the announcer over the data plane, and BGP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from lbagent.agent import layer_settings
from lbagent.announce.announcer import Announcer, AnnouncerInputs
from lbagent.announce.bgp.bgp_routes import BgpRoutes, BgpSection
from lbagent.announce.bgp.speaker import BgpSpeaker
from lbagent.announce.leader.lease_election import LeaseElection
from lbagent.kube.kube_client import KubeClient
from lbagent.kube.kube_settings import KubeSettings
from lbagent.net.snapshot import NodeNetwork
from lbagent.objects.records import ObjectSnapshot
from lbagent.pools.read_pools import PoolsFile, parse_pools
from lbagent.sources.kube.source import KubeSource

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents
    from lbagent.targets.data_plane import AnnouncingPlane, ServedState
    from lbagent.textfile.followed_file import FollowedFile


def build_announcer(components: AgentComponents, plane: AnnouncingPlane, pools: PoolsFile) -> Announcer:
    """Return what announces addresses. With a Kubernetes API, Leases say which node does; without one this node does."""
    config, loop = components.config, components.loop
    election = None
    if config.has_kubernetes:
        folder = os.path.join(config.state_dir, "announce")  # the source's credentials are the source's to remove
        settings = KubeSettings(kubeconfig=config.kubeconfig, node_name=config.name_of_node, state_dir=folder)
        contact = next((each.contact for each in components.sources if isinstance(each, KubeSource)), None)
        election = LeaseElection(KubeClient(settings, contact), config.name_of_node, pools.l2.lease_duration_s)

    def objects() -> ObjectSnapshot | None:
        is_complete = not loop.waiting and all(source.trusted or source.listed for source in components.sources)
        return loop.inbox.store.snapshot() if is_complete and plane.first_pass.is_set() else None

    (runner,) = (each for each in loop.runners if each.target is plane)

    around = AnnouncerInputs(
        objects,
        lambda: plane.network,
        plane.announcing_devices,
        plane.carriers,
        lambda: plane.current_state,
        lambda: runner.pending_since is None,
    )
    return Announcer(
        config.name_of_node, pools, plane.responder(pools.l2.restart_grace_s), around,
        election=election, events=components.events, external_ips=config.external_ips,
        external_ip_ranges=layer_settings.external_ip_ranges(config),
    )  # fmt: skip


def start_announcer(
    components: AgentComponents, announcer: Announcer, file: FollowedFile, group: asyncio.TaskGroup
) -> None:
    """Announce, and follow what decides over it: objects, devices, the file of pools."""
    components.loop.on_objects = announcer.objects_changed
    components.plane.on_network = both(components.plane.on_network, announcer.network_changed)
    routes = build_routes(components, announcer)
    group.create_task(routes.run())
    group.create_task(announcer.run())
    group.create_task(follow_state(components.plane, announcer))
    group.create_task(file.follow(lambda text: announcer.use_pools(parse_pools(text, file.path))))


async def follow_state(plane: ServedState, announcer: Announcer) -> None:
    """Wake the announcer for ever whenever another State is in force."""
    generation = plane.generation
    while True:
        generation = await plane.changed_from(generation)
        announcer.state_changed()


def both(*followers: Callable[[NodeNetwork], None]) -> Callable[[NodeNetwork], None]:
    """Return a function that tells all of them."""

    def follow(network: NodeNetwork) -> None:
        for each in followers:
            each(network)

    return follow


def build_routes(components: AgentComponents, announcer: Announcer) -> BgpRoutes:
    """Return what announces addresses by BGP; the announcer tells it which."""
    config, plane = components.config, components.plane
    folder = os.path.dirname(os.path.abspath(config.announce))
    speaker = BgpSpeaker(config.state_dir, config.name_of_node, lambda: plane.network, password_folder=folder)

    def section() -> BgpSection | None:
        if announcer.wanted is None:
            return None
        node = announcer.objects.nodes.get(announcer.node)
        return BgpSection(announcer.pools.bgp, node.labels if node else {})

    components.speaker = speaker
    announcer.routes = BgpRoutes(speaker, section)
    return announcer.routes
