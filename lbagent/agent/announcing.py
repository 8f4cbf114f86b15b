"""Announcing addresses (--announce) as part of the agent: the announcer over the data plane, and BGP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple, cast

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
from lbagent.textfile.followed_file import FollowedFile

if TYPE_CHECKING:
    from lbagent.agent.core_parts import CoreParts
    from lbagent.config import Config
    from lbagent.sync.loop import SyncLoop
    from lbagent.targets.data_plane import AnnouncingPlane, DataPlane, ServedState


class Announcing(NamedTuple):
    """The parts of an agent with --announce."""

    announcer: Announcer
    speaker: BgpSpeaker  # of BGP
    file: FollowedFile  # of address pools

    def reconfigure(self, config: Config, changed: Collection[str]) -> None:
        """Take over the external IPs of a new configuration."""
        if "external_ips" in changed or "external_ip_cidr" in changed:
            self.announcer.use_external_ips(
                external_ips=config.external_ips, external_ip_ranges=layer_settings.external_ip_ranges(config)
            )


def build_announcing(core: CoreParts, file: FollowedFile, pools: PoolsFile) -> Announcing:
    """Return what announces addresses. With a Kubernetes API, Leases decide which node does; without one this node does."""
    config, loop, sources, plane = core.in_force.config, core.loop, core.sources, cast("AnnouncingPlane", core.plane)
    election = None
    if config.has_kubernetes:
        folder = os.path.join(config.state_dir, "announce")  # the source's credentials are the source's to remove
        settings = KubeSettings(kubeconfig=config.kubeconfig, node_name=config.name_of_node, state_dir=folder)
        contact = next((each.contact for each in sources if isinstance(each, KubeSource)), None)
        election = LeaseElection(KubeClient(settings, contact), config.name_of_node, pools.l2.lease_duration_s)

    def objects() -> ObjectSnapshot | None:
        is_complete = not loop.waiting and all(source.trusted or source.listed for source in sources)
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
    announcer = Announcer(
        config.name_of_node, pools, plane.responder(pools.l2.restart_grace_s), around,
        election=election, events=core.events, external_ips=config.external_ips,
        external_ip_ranges=layer_settings.external_ip_ranges(config),
    )  # fmt: skip
    folder = os.path.dirname(os.path.abspath(config.announce))
    speaker = BgpSpeaker(config.state_dir, config.name_of_node, lambda: plane.network, password_folder=folder)
    return Announcing(announcer, speaker, file)


def start_announcing(announcing: Announcing, loop: SyncLoop, plane: DataPlane, group: asyncio.TaskGroup) -> None:
    """Announce, and follow what decides over it: objects, devices, the file of pools."""
    announcer, speaker, file = announcing
    loop.on_objects = announcer.objects_changed
    plane.on_network = both(plane.on_network, announcer.network_changed)
    announcer.routes = BgpRoutes(speaker, lambda: bgp_section(announcer))
    group.create_task(announcer.routes.run())
    group.create_task(announcer.run())
    group.create_task(follow_state(plane, announcer))
    group.create_task(file.follow(lambda text: announcer.use_pools(parse_pools(text, file.path))))


async def follow_state(plane: ServedState, announcer: Announcer) -> None:
    """Wake the announcer whenever another State is in force."""
    generation = plane.generation
    while True:
        generation = await plane.changed_from(generation)
        announcer.state_changed()


def both(*followers: Callable[[NodeNetwork], None]) -> Callable[[NodeNetwork], None]:
    """Return a function that calls all of them."""

    def follow(network: NodeNetwork) -> None:
        for each in followers:
            each(network)

    return follow


def bgp_section(announcer: Announcer) -> BgpSection | None:
    """Return the section bgp of the pools with the labels of this node, which choose its peers; None before the first objects."""
    if announcer.wanted is None:
        return None
    node = announcer.objects.nodes.get(announcer.node)
    return BgpSection(announcer.pools.bgp, node.labels if node else {})
