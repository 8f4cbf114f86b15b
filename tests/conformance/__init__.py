"""The official Kubernetes e2e suite against agents on the nodes of a real cluster (docs/conformance.md)."""
