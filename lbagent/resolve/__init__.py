"""All objects -> State: frontends, their backends, and who wins a contested one. Pure: any order of events gives the same State."""

from lbagent.resolve.resolver import Options, Resolver, resolve

__all__ = ["Options", "Resolver", "resolve"]
