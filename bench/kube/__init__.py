"""Kubernetes: the agent before a real API server, beside the real kube-proxy."""
