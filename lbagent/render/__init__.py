"""Renderers: the API for what puts Services in force, Service by Service. Plug-ins import it from here.

`service_renderer.py` is the interface, `renderer_types.py` has what its calls are made of. `service_calls.py` makes the calls
from States, `renderer_names.py` finds renderers by name.
"""

from lbagent.render.renderer_names import renderer
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
from lbagent.render.service_renderer import API_VERSION, HOST_PORTS, NEEDS_NODES, TRANSLATES, Factory, ServiceRenderer

__all__ = [
    "API_VERSION",
    "HOST_PORTS",
    "NEEDS_NODES",
    "TRANSLATES",
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
    "renderer",
]
