"""The Kubernetes API: client, lists and watches, caches, Leases, leader election, Events.

`kube_client.py` is the only module that uses the package `kubernetes`; import the modules. `sources/kube` makes records of the
objects, `announce` and `cloud` use Leases.
"""
