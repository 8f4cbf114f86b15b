"""The Kubernetes API: client, lists and watches, caches, Leases, leader election, Events.

What is done with the objects is not here: `sources/kube` makes records of them, `announce` and `cloud` use Leases.
"""
