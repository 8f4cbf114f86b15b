"""Which port mappings the controller's Services request at a router, and their target node."""

from __future__ import annotations

from collections.abc import Sequence

from lbagent.cloud.edge import edge_rules
from lbagent.cloud.edge.edge_config import EdgeConfig, NodeChoice
from lbagent.cloud.edge.edge_rules import NoNode
from lbagent.cloud.edge.protocols.port_mapping import PortMapping
from lbagent.cloud.planned_balancer import Action
from lbagent.cloud.provider import ClientBuilder, Node, Service, node_included
from lbagent.cloud.service_rules import action_of
from lbagent.objects.records import ObjectChange, ObjectSnapshot


class RouterServices:
    """Reads the controller's objects. Nothing here blocks."""

    def __init__(self, config: EdgeConfig) -> None:
        self.config = config
        self._builder: ClientBuilder | None = None
        self._client = ""  # the target address of mappings at the last check

    def begin(self, builder: ClientBuilder) -> None:
        """Read the controller's objects, and follow their changes."""
        self._builder = builder
        self._client = self._client_now()
        builder.follow(self._note)

    def service(self, key: str) -> Service | None:
        """Return a Service of type LoadBalancer, as providers get it; None: it does not exist, or is being deleted."""
        watched = self._objects().services.get(key)
        if watched is None or watched.balancer is None or not watched.balancer.wanted:
            return None
        record = getattr(watched, "record", None)
        return record if isinstance(record, Service) else None

    def asking(self) -> list[str]:
        """Return the Services that request mappings."""
        found = [self.service(key) for key in self._objects().services]
        return [each.key for each in found if each and not edge_rules.why_not_asked(self.config, each)]

    def is_wanted(self, mapping: PortMapping) -> bool:
        """Return whether a mapping with this cluster's description is one that its Service has or may keep.

        A mapping to no node of this cluster belongs to another cluster with the same name, and is kept too. A refusal does not
        remove the mappings of a Service.
        """
        owner = edge_rules.owner_of(mapping.description)
        if owner is None or mapping.client not in self.addresses():
            return True
        service = self.service(owner.service)
        if service is None:
            return False
        if self._action(owner.service) is Action.IGNORE:  # of another class: another controller's
            return True
        if edge_rules.why_not_asked(self.config, service):
            return False
        if edge_rules.why_refused(service):
            return True
        wanted = edge_rules.mappings_of(owner.cluster, service, mapping.client)
        return (mapping.outside, mapping.description) in {(each.outside, each.description) for each in wanted}

    # --- nodes ---

    def client(self, nodes: Sequence[Node]) -> str:
        """Return the address of the selected node. Raises NoNode."""
        return edge_rules.node_address(edge_rules.choose_node(self._choice(), nodes, self._node_name()))

    def why_not_local(self, wanted: Sequence[PortMapping], local_address: str) -> str:
        """Return why a router may refuse mappings to a node that is not this host, '' for no reason."""
        client = next((each.client for each in wanted if each.client != local_address), "")
        if not client or self._choice() is NodeChoice.FIRST_READY:
            return ""
        advice = "run the controller on that node, in the host's network, or set `node: first-ready`"
        return f"the local client ({local_address}) cannot be used to set up mappings to {client}: {advice}"

    def addresses(self) -> set[str]:
        """Return the InternalIPs of all nodes."""
        return {text for node in self._nodes() for kind, text in node.addresses if kind == "InternalIP"}

    def why_address_refused(self, address: str) -> str:
        """Return why an external address must not be in a status, '' if it may."""
        services = [getattr(each, "record", None) for each in self._objects().services.values()]
        found = [text for each in services if isinstance(each, Service) for text in each.cluster_ips if text != "None"]
        return edge_rules.why_address_refused(address, self._nodes(), found)

    def _choice(self) -> NodeChoice:
        return edge_rules.node_choice(self.config, self._node_name())

    def _node_name(self) -> str:
        return self._builder.node_name if self._builder else ""

    # --- changes ---

    def _note(self, changes: Sequence[ObjectChange]) -> None:
        """Sync Services when their label or the selected node changed: the controller does not check these."""
        assert self._builder is not None
        client, self._client = self._client, self._client_now()
        for key in self.asking() if client != self._client else ():
            self._builder.sync(key)
        for change in changes:
            old, new = getattr(change.old, "record", None), getattr(change.new, "record", None)
            if not (isinstance(old, Service) and isinstance(new, Service)):
                continue
            if old.labels.get(edge_rules.TYPE) != new.labels.get(edge_rules.TYPE):
                self._builder.sync(change.key)

    def _client_now(self) -> str:
        try:
            return self.client([node for node in self._nodes() if node_included(node)])
        except NoNode:
            return ""

    def _nodes(self) -> list[Node]:
        found = [getattr(each, "record", None) for each in self._objects().nodes.values()]
        return [each for each in found if isinstance(each, Node)]

    def _objects(self) -> ObjectSnapshot:
        return self._builder.snapshot() if self._builder else ObjectSnapshot()

    def _action(self, key: str) -> Action:
        assert self._builder is not None
        return action_of(self._objects().services[key], self._builder.lb_class)[0]
