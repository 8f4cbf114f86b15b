"""The chaos run: everything around the agent misbehaves, in an order that a seed gives, while honest clients are watched."""
