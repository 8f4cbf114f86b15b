"""Real traffic through the real agent, in network namespaces."""
