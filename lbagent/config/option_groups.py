"""The groups in which `lbagent agent --help` lists the options: each key is in one of them."""

from __future__ import annotations

from lbagent.config.schema import OPTIONS, Option

GROUPS: dict[str, tuple[str, ...]] = {
    "Sources": ("manifests", "apilb", "synthetic"),
    "Kubernetes": (
        "kubeconfig", "in-cluster", "max-delete-ratio", "node-name", "node-ip", "nodeport-addresses", "healthz-bind-address",
        "metrics-bind-address",
    ),
    "Data plane": ("renderer", "shadow"),
    "Devices and sockets": ("device", "pod-device", "attach", "socket-lb", "cgroup"),
    "Addresses and forwarding": (
        "announce", "external-clusterip", "external-ips", "external-ip-cidr", "exclude", "masquerade-all", "strict-source",
        "new-flows", "snat-ports", "snat-address", "reject-rate", "echo-reply", "local-endpoint-weight", "policy-compat",
        "services", "egress-snat", "cluster-cidr",
    ),
    "Dead nodes": ("node-liveness", "liveness-key-file", "liveness-peers", "liveness-port", "dead-node-flows"),
    "Tables": (
        "flow-table-size", "flow6-table-size", "snat-table-size", "snat6-table-size", "max-service-slots", "max-backends",
        "max-source-ranges", "max-affinities", "max-spilled-flows", "max-fragments", "maglev-table-size",
        "max-frontends-per-service", "max-endpoints-per-namespace",
    ),
    "Events": ("events", "event-rate"),
    "Times": ("timeout-new", "timeout-tcp", "timeout-udp", "timeout-closing", "resync-interval", "verify-every", "sweep-interval"),
    "Files, logs and metrics": (
        "socket", "bpffs", "state-dir", "artifact", "log-format", "log-level", "metrics-address", "ui", "ui-host",
        "handshake-sample",
    ),
}  # fmt: skip


def grouped_options() -> dict[str, list[Option]]:
    """Return the options of each group, in the order of the table."""
    by_key = {option.key: option for option in OPTIONS}
    return {title: [by_key[key] for key in keys] for title, keys in GROUPS.items()}
