"""kube-proxy's HTTP ports of a node: health check node ports, /healthz, /livez, /readyz, and the metrics port.

`service_health.py` serves the healthCheckNodePort of each Service, `proxy_health.py` determines whether this node should get
traffic; import `node_servers.py`, which opens the ports. Health checks of backends are not here (`probes`).
"""
