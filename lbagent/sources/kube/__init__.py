"""The Kubernetes API as a source: Services, EndpointSlices, the own Node, its Pods, and BackendStates where their CRD is installed.

Import `source.py`; `deletion_guard.py` holds deletions back until they are confirmed. Client, reflector and settings are in `kube`.
"""
