"""The chaos run: everything around the agent fails, in the order of a seed, while clients are checked."""
