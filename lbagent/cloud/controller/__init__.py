"""The controllers of `lbagent cloud run`: Services and Nodes of the API server, a work queue, calls of a provider, patches.

Import `cloud_run.py`. No provider is named here: `cloud/providers.py` creates it. Controllers of Nodes are in `nodes`.
Source: k8s.io/cloud-provider, controllers/service (behaviour); client-go, util/workqueue and tools/leaderelection (behaviour).
"""
