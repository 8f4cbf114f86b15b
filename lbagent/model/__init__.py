"""The model: addresses, backends, services, flags, states, ids, Maglev tables. Pure and immutable; no I/O, no clock.

Import the names below; the modules hold the rules. Kubernetes objects are in `objects`, the bytes of the maps in `maps`.
"""

from lbagent.errors import InvalidTransition
from lbagent.model.address import ALL_PROTOCOLS, L3n4Addr, L4Addr, L4Type, Scope, format_ip, parse_ip
from lbagent.model.backend import (
    DEFAULT_BACKEND_WEIGHT,
    Backend,
    BackendState,
    is_valid_backend_state,
    is_valid_state_transition,
)
from lbagent.model.family import Family
from lbagent.model.flags import ServiceFlags, SvcFlagParam
from lbagent.model.ids import IdAllocator, assign_ids
from lbagent.model.kinds import Algorithm, SVCNatPolicy, SVCTrafficPolicy, SVCType
from lbagent.model.maglev import lookup_table
from lbagent.model.service import CIDR, SVC, ServiceName
from lbagent.model.state import State

__all__ = [
    "ALL_PROTOCOLS",
    "CIDR",
    "DEFAULT_BACKEND_WEIGHT",
    "SVC",
    "Algorithm",
    "Backend",
    "BackendState",
    "Family",
    "IdAllocator",
    "InvalidTransition",
    "L3n4Addr",
    "L4Addr",
    "L4Type",
    "SVCNatPolicy",
    "SVCTrafficPolicy",
    "SVCType",
    "Scope",
    "ServiceFlags",
    "ServiceName",
    "State",
    "SvcFlagParam",
    "assign_ids",
    "format_ip",
    "is_valid_backend_state",
    "is_valid_state_transition",
    "lookup_table",
    "parse_ip",
]
