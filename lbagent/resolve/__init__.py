"""All objects -> State: frontends, backends, owners of contested frontends. Pure: any order of events gives the same State."""

from lbagent.resolve.resolver import Options, Resolver, resolve

__all__ = ["Options", "Resolver", "resolve"]
