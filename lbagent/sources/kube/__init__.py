"""The Kubernetes API as a source: Services, EndpointSlices, the own Node, its Pods, and BackendStates where their CRD is installed.

Import `source.py`; `deletion_guard.py` delays deletions until they are confirmed. Client, reflector and settings are in `kube`.
"""
