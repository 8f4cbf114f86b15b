"""Kubernetes: the agent with a real API server, compared with the real kube-proxy."""
