"""Load balancers for Kubernetes API servers: one YAML document, served by HAProxy containers or by the BPF programs.

`files` reads the document, `instance_plan.py` computes the steps (pure), `hosts` executes them, `deployment.py` joins these for the
command line; `native` is the agent's side. Probes of servers are not here (`probes`).
"""
