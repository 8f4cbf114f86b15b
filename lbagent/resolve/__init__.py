"""All objects to a State: frontends, backends, owners of contested frontends. Pure: any order of events gives the same State.

Import the names below. `sources` read the objects, `targets` write the State.
"""

from lbagent.resolve.resolver import InForce, Options, Resolver, resolve

__all__ = ["InForce", "Options", "Resolver", "resolve"]
