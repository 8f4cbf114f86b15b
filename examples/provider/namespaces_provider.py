"""An example provider: every Service of a namespace has the namespace's address, of a balancer outside the cluster."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

import yaml

from lbagent.cloud.provider import (
    CONFIG,
    CloudProvider,
    ConfigError,
    Ingress,
    LoadBalancer,
    LoadBalancerStatus,
    Node,
    Refusal,
    Service,
    default_load_balancer_name,
)


class Balancers(LoadBalancer):
    def __init__(self, addresses: Mapping[str, str]) -> None:
        self.addresses = addresses

    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:
        return service.status if service.status.ingress else None

    def name(self, cluster: str, service: Service) -> str:
        return default_load_balancer_name(service)

    async def ensure(self, cluster: str, service: Service, nodes: Sequence[Node]) -> LoadBalancerStatus:
        address = self.addresses.get(service.namespace)
        if address is None:
            raise Refusal("NamespaceHasNoAddress", f"the namespace {service.namespace} has no address")
        # A real provider configures its balancer here: service.ports are at the addresses of `nodes`, port.node_port.
        # Packets come from the balancer, so nodes must not serve this address themselves: ipMode Proxy (KEP-1860).
        return LoadBalancerStatus((Ingress(ip=address, ip_mode="Proxy"),))

    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        """A real provider configures the addresses of `nodes` at its balancer here."""

    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        """A real provider removes the balancer here, also an incomplete one."""


class NamespacesProvider(CloudProvider):
    name = "namespaces"

    def __init__(self, config: str | None) -> None:
        self._balancers = Balancers(addresses(config or ""))

    def load_balancer(self) -> LoadBalancer:
        return self._balancers

    def reload(self, config: str) -> None:
        self._balancers.addresses = addresses(config)


def addresses(text: str) -> dict[str, str]:
    """Return the address of each namespace. Raises ConfigError, to which lbagent adds the name of the file."""
    found = yaml.safe_load(text) or {}
    if not isinstance(found, dict):
        raise ConfigError("a mapping of namespaces and addresses is wanted", file=CONFIG, line=1)
    for namespace, address in found.items():
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise ConfigError(f"{namespace}: {address!r} is not an address", file=CONFIG) from None
    return {str(namespace): str(address) for namespace, address in found.items()}
