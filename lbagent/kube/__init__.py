"""The Kubernetes API: client, lists and watches, caches, Leases, leader election, Events.

`kube_client.py` is the one door to the package `kubernetes`; import the modules. What is done with the objects is not here:
`sources/kube` makes records of them, `announce` and `cloud` use Leases.
"""
