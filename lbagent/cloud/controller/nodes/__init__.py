"""The controllers of Nodes: labels, addresses and taints from their machines, deleted machines, routes to their pods.

Import `node_controllers.py`, which builds those that are enabled. `*_rules.py` are pure; `node_writer.py` writes to the API server.
Source: k8s.io/cloud-provider, controllers/node, controllers/nodelifecycle, controllers/route (behaviour).
"""
