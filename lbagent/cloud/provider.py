"""The plug-in API for providers of load balancers: everything that a plug-in imports.

A plug-in is an entry point of the group `lbagent.cloud_providers`; its value is a factory, `factory(config: str | None) ->
CloudProvider`, which gets the text of the `--config` file (None without one) and raises ConfigError for a wrong one, with
`line` and, as a placeholder for the file's name, `file=CONFIG`. The functions of a provider run on the controller's event loop: run
blocking calls in a thread. Source: k8s.io/cloud-provider, cloud.go (behaviour).
"""

from __future__ import annotations

from lbagent.cloud.provider_api.cloud_provider import CONFIG, ClientBuilder, CloudProvider, Factory, LoadBalancer
from lbagent.cloud.provider_api.provider_errors import (
    DiskNotFound,
    ImplementedElsewhere,
    InstanceNotFound,
    NotSupported,
    Refusal,
    RetryAfter,
)
from lbagent.cloud.provider_api.provider_parts import (
    Clusters,
    InstanceMetadata,
    Instances,
    InstancesV2,
    PVLabeler,
    Route,
    Routes,
    Zone,
    Zones,
)
from lbagent.cloud.provider_api.provider_records import (
    Ingress,
    IngressPort,
    LoadBalancerStatus,
    Node,
    Service,
    ServicePort,
    same_ingress,
)
from lbagent.cloud.provider_api.provider_rules import (
    default_load_balancer_name,
    health_check,
    needs_update,
    node_included,
    source_ranges,
)
from lbagent.errors import ConfigError

__all__ = [
    "CONFIG", "ClientBuilder", "CloudProvider", "Clusters", "ConfigError", "DiskNotFound", "Factory", "ImplementedElsewhere",
    "Ingress", "IngressPort", "InstanceMetadata", "InstanceNotFound", "Instances", "InstancesV2", "LoadBalancer",
    "LoadBalancerStatus", "Node", "NotSupported", "PVLabeler", "Refusal", "RetryAfter", "Route", "Routes", "Service",
    "ServicePort", "Zone", "Zones", "default_load_balancer_name", "health_check", "needs_update", "node_included",
    "same_ingress", "source_ranges",
]  # fmt: skip
