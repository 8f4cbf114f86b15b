"""Load balancers in front of Kubernetes API servers: one YAML, served by HAProxy containers or by the BPF programs."""
