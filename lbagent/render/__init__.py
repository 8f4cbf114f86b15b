"""Renderers: the API for what puts Services in force, Service by Service. Plug-ins import it from here.

`service_renderer.py` is the interface, `renderer_types.py` has what its calls are made of.
"""

from lbagent.render.renderer_types import (
    Difference,
    Interfaces,
    IPAddresses,
    ProtocolType,
    ResolvedService,
    ResyncEventData,
    ServiceBackend,
    ServicePort,
    TrafficPolicy,
)
from lbagent.render.service_renderer import API_VERSION, HOST_PORTS, NEEDS_NODES, Factory, ServiceRenderer

__all__ = [
    "API_VERSION",
    "HOST_PORTS",
    "NEEDS_NODES",
    "Difference",
    "Factory",
    "IPAddresses",
    "Interfaces",
    "ProtocolType",
    "ResolvedService",
    "ResyncEventData",
    "ServiceBackend",
    "ServicePort",
    "ServiceRenderer",
    "TrafficPolicy",
]
