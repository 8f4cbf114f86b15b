"""The controllers of Nodes: what is known of their machines, whether these are still there, and the routes to their pods.

Source: k8s.io/cloud-provider, controllers/node, controllers/nodelifecycle, controllers/route (behaviour).
"""
