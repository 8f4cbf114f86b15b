"""What is wrong with the agent, its node or what surrounds it, found by looking every few seconds, and mended where it can be."""
