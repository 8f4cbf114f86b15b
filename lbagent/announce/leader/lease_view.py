"""What Leases say of an address, as its machine wants to know it. Pure."""

from __future__ import annotations

from lbagent.announce.leader.lease_election import LeaseElection
from lbagent.announce.leader.rendezvous import preferred_node
from lbagent.announce.vip_machine import View, is_overdue
from lbagent.announce.wanted import WantedVip


def view_of(election: LeaseElection, node: str, vip: WantedVip, now: float, *, eligible: bool, served: bool) -> View:
    """Return what is known of an address now at this node, which may announce it if it is `eligible`.

    One whose programs do not serve an address of policy Cluster leaves it to another node that does; without one it stays.
    """
    address = vip.address
    nodes = {each for each in election.nodes_reaching(address, now) if each != node and vip.admits(each)}
    holder = election.holder(address)
    holder_dead_s = election.dead_s(holder, now) if holder else -1.0
    if is_overdue(holder_dead_s):
        nodes.discard(holder)
    if nodes and vip.is_withheld(node, is_served=served):
        eligible = False
    return View(
        eligible,
        elects=True,
        fresh=election.is_fresh(now),
        holder=holder,
        holder_dead_s=holder_dead_s,
        preferred=preferred_node(address, nodes | {node} if eligible else nodes),
    )
