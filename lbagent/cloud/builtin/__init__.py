"""The providers that come with lbagent."""
