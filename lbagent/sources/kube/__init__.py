"""The Kubernetes API as a source: Services, EndpointSlices, the own Node, its Pods, and BackendStates where their CRD is installed.

`kube_client.py` asks (the one door to the package `kubernetes`), `reflector.py` lists and watches one resource, `object_cache.py`
holds its objects, `deletion_guard.py` says which deletions wait for a confirmation, `source.py` joins them to an
`objects.source.Source`. `resources.py` is the list of what is read, `kube_settings.py` what can be set.
"""
