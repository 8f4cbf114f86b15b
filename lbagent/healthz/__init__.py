"""What balancers and kubelets ask a node over HTTP, in kube-proxy's words: health check node ports, /healthz, /livez, metrics.

`service_health.py` answers at the healthCheckNodePort of each Service, `proxy_health.py` says whether this node should be sent
traffic, `node_servers.py` opens their ports and joins them to the agent.
"""
