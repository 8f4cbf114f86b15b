"""Which nodes are dead (--node-liveness) as part of the agent: who uses the answer, and with which settings it is found."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lbagent.kube.kube_client import KubeClient
from lbagent.kube.kube_settings import KubeSettings
from lbagent.liveness.key_secret import fill_key_secret
from lbagent.liveness.live_leases import LiveLeases
from lbagent.liveness.node_liveness import NodeLiveness
from lbagent.sources.kube.source import KubeSource

if TYPE_CHECKING:
    from lbagent.agent.announcing import Announcing
    from lbagent.agent.core_parts import CoreParts


def build_liveness(core: CoreParts, announcing: Announcing | None) -> NodeLiveness:
    """Return what finds dead nodes, for endpoints and for announced addresses."""
    config, loop = core.in_force.config, core.loop
    folder = os.path.join(config.state_dir, "liveness")  # the source's credentials are the source's to remove
    settings = KubeSettings(kubeconfig=config.kubeconfig, node_name=config.name_of_node, state_dir=folder)
    contact = next((each.contact for each in core.sources if isinstance(each, KubeSource)), None)
    client = KubeClient(settings, contact)
    liveness = NodeLiveness(
        config.name_of_node,
        LiveLeases(client, config.name_of_node),
        port=config.liveness_port,
        key_file=config.liveness_key_file,
        observers=config.liveness_peers,
        addresses=lambda: loop.local_node().addresses,
        make_key=lambda: fill_key_secret(client),
        events=core.events,
    )
    loop.before_first_pass = liveness.first_decision
    liveness.on_dead.append(loop.set_dead_nodes)
    if announcing is not None:
        liveness.on_dead.append(announcing.announcer.set_dead_nodes)
    return liveness
