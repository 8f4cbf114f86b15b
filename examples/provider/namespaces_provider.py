"""An own provider: every Service of a namespace has the namespace's address, which leads to a balancer outside the cluster."""

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
        # Here a real provider tells its balancer where service.ports are: at the addresses of `nodes`, port.node_port.
        # The packets come from the balancer, so in the cluster this address is not the node's own: ipMode Proxy (KEP-1860).
        return LoadBalancerStatus((Ingress(ip=address, ip_mode="Proxy"),))

    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        """Here a real provider tells its balancer the addresses of `nodes`."""

    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        """Here a real provider takes the balancer away, also what is left of half a one."""


class NamespacesProvider(CloudProvider):
    name = "namespaces"

    def __init__(self, config: str | None) -> None:
        self._balancers = Balancers(addresses(config or ""))

    def load_balancer(self) -> LoadBalancer:
        return self._balancers

    def reload(self, config: str) -> None:
        self._balancers.addresses = addresses(config)


def addresses(text: str) -> dict[str, str]:
    """Return the address of each namespace. Raises ConfigError, which lbagent shows with the name of the file."""
    found = yaml.safe_load(text) or {}
    if not isinstance(found, dict):
        raise ConfigError("a mapping of namespaces and addresses is wanted", file=CONFIG, line=1)
    for namespace, address in found.items():
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise ConfigError(f"{namespace}: {address!r} is no address", file=CONFIG) from None
    return {str(namespace): str(address) for namespace, address in found.items()}
