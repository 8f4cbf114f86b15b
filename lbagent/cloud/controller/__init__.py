"""The service controller of `lbagent cloud run`: Services and Nodes of the API server, a queue, calls of a provider, patches.

Source: k8s.io/cloud-provider, controllers/service (behaviour); client-go, util/workqueue and tools/leaderelection (behaviour).
"""
