"""The schema of the configuration: one flat record, and the command line's form of each key."""

from __future__ import annotations

import socket
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta

from lbagent.config.renderer_words import DEFAULT as DEFAULT_RENDERER
from lbagent.defaults import DEFAULT_BPFFS, DEFAULT_SOCKET, DEFAULT_STATE_DIR
from lbagent.model.address import parse_ip

ENV_PREFIX = "LBAGENT_"
TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})
# fields that a running agent reloads on SIGHUP; the others need a restart (which loses no packet)
RELOADABLE = frozenset(
    {
        "device", "pod_device", "attach", "node_ip", "nodeport_addresses", "log_format", "log_level", "external_clusterip",
        "external_ips", "external_ip_cidr", "exclude", "masquerade_all", "strict_source", "new_flows", "snat_ports", "snat_address",
        "reject_rate", "echo_reply", "handshake_sample", "event_rate",
        "timeout_new", "timeout_tcp", "timeout_udp", "timeout_closing", "resync_interval", "verify_every", "sweep_interval",
        "flow_table_size", "flow6_table_size", "snat_table_size", "snat6_table_size", "max_delete_ratio",
        "max_frontends_per_service", "max_endpoints_per_namespace", "local_endpoint_weight", "policy_compat",
        "cluster_cidr", "dead_node_flows",
    }
)  # fmt: skip

Words = tuple[str, ...]
PRIMARY = "primary"
CONTIV = "contiv"  # of policy_compat
AUTO = "auto"  # on with a Kubernetes API, at kube-proxy's port
HEALTHZ, METRICS = ("0.0.0.0:10256", "[::]:10256"), ("127.0.0.1:10249",)
_SECONDS = {"unit": "s"}


class Config(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Every setting of the agent. Times are seconds, sizes are entries."""

    manifests: Annotated[str, Meta(description="Folder with the Kubernetes manifests to serve.")] = ""
    kubeconfig: Annotated[
        str, Meta(description="Kubeconfig of the Kubernetes API to serve; its current context is used.")
    ] = ""
    in_cluster: Annotated[
        bool, Meta(description="Whether the agent runs as a Pod and reaches the Kubernetes API by its service account.")
    ] = False
    max_delete_ratio: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="Percent of at least 20 Services, or EndpointSlices, that may be missing in a list of the Kubernetes API;"
            " a larger deletion waits until this is raised.",
            extra={"unit": "%"},
        ),
    ] = 50
    synthetic: Annotated[
        str, Meta(description="Generated Services for measurements, SERVICES:BACKENDS (10000:10).")
    ] = ""
    apilb: Annotated[
        str,
        Meta(
            description="File or folder of pool files: their instances of native mode are served on this host, by socket programs,"
            " too; read again when they change."
        ),
    ] = ""
    renderer: Annotated[
        Words,
        Meta(
            description="Data plane, NAME or NAME=SETTINGS: bpf, nftables, auto (bpf, else nftables), none (no packet is balanced),"
            " record=FILE (none, and each call of a renderer as a line of JSON), or a plug-in; of several, bpf serves (repeatable)."
        ),
    ] = DEFAULT_RENDERER
    device: Annotated[
        Words,
        Meta(
            description="Device by which service traffic arrives: a name, a pattern (eth+, bond*), or auto for the devices of the"
            " default routes (repeatable)."
        ),
    ] = ()
    pod_device: Annotated[
        Words, Meta(description="Pattern of the devices behind which this node's pods are (repeatable).")
    ] = ()
    attach: Annotated[
        Literal["auto", "xdp", "xdp-generic", "tc"], Meta(description="How programs are attached to devices.")
    ] = "auto"
    socket_lb: Annotated[
        bool,
        Meta(
            description="Whether the node's own processes, and host-network pods, reach Services by socket programs, "
            "which connect their sockets directly to a backend."
        ),
    ] = False
    cgroup: Annotated[
        str,
        Meta(
            description="Cgroup whose processes the socket programs serve (default: the root of cgroup2, which has all"
            " processes; in a container that of a mount of the host)."
        ),
    ] = ""
    node_name: Annotated[
        str,
        Meta(
            description="Name of this node (default: the host's name).",
            extra={"other_name": "hostname-override"},
        ),
    ] = ""
    node_ip: Annotated[Words, Meta(description="Address of this node for NodePorts and SNAT (repeatable).")] = ()
    nodeport_addresses: Annotated[
        Words,
        Meta(
            description="CIDR of this node's addresses for NodePorts and health check node ports, or primary: the first "
            "one of each IP family (default: every InternalIP; repeatable)."
        ),
    ] = ()
    socket: Annotated[str, Meta(description="Path of the Unix socket that serves the API.")] = DEFAULT_SOCKET
    bpffs: Annotated[str, Meta(description="Folder of the pins, on a bpf file system.")] = DEFAULT_BPFFS
    state_dir: Annotated[
        str, Meta(description="Folder of state that is kept over restarts: backend states, copies of good manifests.")
    ] = DEFAULT_STATE_DIR
    artifact: Annotated[str, Meta(description="File of compiled programs (default: the one in the package).")] = ""
    log_format: Annotated[Literal["text", "json"], Meta(description="Format of the log lines.")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Lowest level that is logged.")
    ] = "info"
    metrics_address: Annotated[
        str, Meta(description="ADDRESS:PORT that serves Prometheus metrics (default: none).")
    ] = ""
    metrics_bind_address: Annotated[
        str,
        Meta(
            description="kube-proxy's name of metrics-address; auto: 127.0.0.1:10249 with a Kubernetes API, else none."
            " Give one of the two."
        ),
    ] = AUTO
    ui: Annotated[
        bool,
        Meta(
            description="Whether a page for browsers is served at the address of the metrics: read only, without log-in."
        ),
    ] = False
    ui_host: Annotated[
        Words,
        Meta(
            description="A further name by which browsers ask for the page; addresses of the listener and localhost are allowed "
            "(repeatable)."
        ),
    ] = ()
    healthz_bind_address: Annotated[
        str,
        Meta(
            description="ADDRESS:PORT that serves /healthz, /livez and /readyz; auto: port 10256 of all addresses with a Kubernetes"
            " API, else none."
        ),
    ] = AUTO
    external_clusterip: Annotated[bool, Meta(description="Whether sources outside the node reach ClusterIPs.")] = True
    external_ips: Annotated[
        bool,
        Meta(
            description="Whether externalIPs of Services are served: a user who may write a Service can claim any address by them."
        ),
    ] = True
    external_ip_cidr: Annotated[
        Words,
        Meta(
            description="CIDR of the externalIPs that are served; others are not, and a warning names them (default: all;"
            " repeatable)."
        ),
    ] = ()
    exclude: Annotated[
        Words,
        Meta(
            description="CIDR[:PORT[/PROTO]] of frontends that are left alone: their packets pass untouched, to another proxy or a"
            " cache (IPv6 with a port: [CIDR]:PORT; repeatable)."
        ),
    ] = ()
    announce: Annotated[
        str,
        Meta(
            description="File of address pools whose addresses this node announces on its networks (ARP, NDP) or by BGP;"
            " read again when it changes."
        ),
    ] = ""
    node_liveness: Annotated[
        Literal["off", "udp"],
        Meta(
            description="Whether the agents find out which nodes are dead, whose endpoints then take no new flows: udp: by an echo"
            " between nodes, with the key of liveness-key-file; needs a Kubernetes API."
        ),
    ] = "off"
    liveness_key_file: Annotated[
        str, Meta(description="File of the key of that echo, the same on each node; read again when it changes.")
    ] = ""
    liveness_peers: Annotated[int, Meta(ge=1, le=64, description="Number of nodes that observe each node.")] = 8
    liveness_port: Annotated[int, Meta(ge=1, le=65535, description="UDP port at which each node answers the echo.")] = (
        10257
    )
    dead_node_flows: Annotated[
        Literal["keep", "reset"],
        Meta(
            description="What becomes of flows to a dead node: keep, or reset: TCP is answered with RST at its next packet."
        ),
    ] = "keep"
    masquerade_all: Annotated[
        bool,
        Meta(
            description="Whether connections of this node's pods to backends on other nodes, too, have an address of this "
            "node as source."
        ),
    ] = False
    strict_source: Annotated[
        bool, Meta(description="Whether a remote backend's replies must arrive by the device of its route.")
    ] = False
    new_flows: Annotated[
        Literal["any", "syn"],
        Meta(
            description="Packets that begin a flow: any; syn: for TCP only a SYN. Other segments without a flow, and "
            "conversations over UDP that connection tracking translates, go to the stack, where the proxy that served this "
            "node before has them."
        ),
    ] = "any"
    snat_ports: Annotated[str, Meta(description="Ports for translated source addresses, FIRST-LAST, from 256 on.")] = (
        "1024-29999"
    )
    snat_address: Annotated[
        Words,
        Meta(
            description="Extra SNAT address of this node, for flows that find no free port of the first one; at most four of"
            " each IP family (repeatable)."
        ),
    ] = ()
    reject_rate: Annotated[
        int, Meta(ge=0, le=1_000_000, description="RST and ICMP answers to rejected packets, per second and CPU.")
    ] = 1000
    echo_reply: Annotated[
        bool,
        Meta(
            description="Whether cluster, external and load balancer IPs answer pings while one of their frontends takes new flows,"
            " and drop them while none does; off: the stack has them."
        ),
    ] = True
    handshake_sample: Annotated[
        int,
        Meta(ge=0, le=65536, description="One of so many TCP handshakes is timed, and its result counted (0: none)."),
    ] = 8
    events: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 21,
            description="Events that are kept for the command monitor, of all CPUs, 128 bytes each (0: none are recorded).",
        ),
    ] = 65536
    event_rate: Annotated[
        int, Meta(ge=0, le=1_000_000, description="Refusals that are recorded as events, per second and CPU.")
    ] = 1000
    maglev_table_size: Annotated[
        int, Meta(description="Entries of a Maglev table: one of ten primes, 251 to 131071.")
    ] = 16381
    flow_table_size: Annotated[int, Meta(description="Entries of the IPv4 flow table, a power of two.")] = 1 << 20
    flow6_table_size: Annotated[int, Meta(description="Entries of the IPv6 flow table (0: half of IPv4's).")] = 0
    snat_table_size: Annotated[
        int, Meta(description="IPv4 SNAT slots, at least one a port (0: as flow table entries).")
    ] = 0
    snat6_table_size: Annotated[
        int, Meta(description="IPv6 SNAT slots, at least one a port (0: as flow table entries).")
    ] = 0
    max_service_slots: Annotated[
        int, Meta(ge=64, le=1 << 22, description="Entries of the service map, for each IP family.")
    ] = 1 << 19
    max_backends: Annotated[int, Meta(description="Number of backend ids, a power of two.")] = 1 << 17
    max_frontends_per_service: Annotated[
        int,
        Meta(
            ge=1,
            le=65535,
            description="Maximum frontends (address, port and protocol) of one Service on a node; the rest is left"
            " out and reported.",
        ),
    ] = 4096
    shadow: Annotated[
        bool,
        Meta(
            description="Whether nothing is served: the new connections of this node are only compared with the decisions of"
            " lbagent (see the command shadow report)."
        ),
    ] = False
    services: Annotated[
        bool, Meta(description="Whether Services are served; without them the agent does what else is configured.")
    ] = True
    egress_snat: Annotated[
        Literal["off", "on"],
        Meta(
            description="Whether what the node forwards gets the node's address as its source, except to the ranges of"
            " cluster-cidr, to and from addresses of nodes, and UDP port 4789 (VXLAN). Only without services, by nftables."
        ),
    ] = "off"
    cluster_cidr: Annotated[Words, Meta(description="Address ranges of pods.")] = ()
    local_endpoint_weight: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="How many times the new flows of another endpoint one of this node gets. Above 1, frontends with endpoints"
            " here and elsewhere use maglev.",
        ),
    ] = 1
    policy_compat: Annotated[
        Literal["kubernetes", "contiv"],
        Meta(
            description="Whether externalTrafficPolicy Local holds for NodePorts and addresses from outside (kubernetes), or"
            " for the ClusterIP, too (contiv)."
        ),
    ] = "kubernetes"
    max_endpoints_per_namespace: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 20,
            description="Maximum backends of the Services of one namespace; more are rejected and reported (0: no "
            "limit beside the fair share).",
        ),
    ] = 0
    max_source_ranges: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Entries of the source range map, for each IP family.")
    ] = 1 << 16
    max_affinities: Annotated[
        int, Meta(ge=64, le=1 << 22, description="Entries of the session affinity map, for each IP family.")
    ] = 1 << 16
    max_spilled_flows: Annotated[
        int, Meta(ge=64, le=1 << 22, description="Entries of the spill map, for each IP family.")
    ] = 1 << 16
    max_fragments: Annotated[
        int, Meta(ge=64, le=1 << 20, description="Fragmented datagrams that are tracked, for each IP family.")
    ] = 1 << 13
    timeout_new: Annotated[
        int, Meta(ge=5, le=600, description="Seconds until a flow without a reply ends.", extra=_SECONDS)
    ] = 60
    timeout_tcp: Annotated[
        int,
        Meta(
            ge=30,
            le=16000,
            description="Seconds until an idle TCP flow ends.",
            extra=_SECONDS | {"other_name": "conntrack-tcp-timeout-established"},
        ),
    ] = 8000
    timeout_udp: Annotated[
        int,
        Meta(
            ge=5,
            le=16000,
            description="Seconds until an idle UDP flow with replies ends.",
            extra=_SECONDS | {"other_name": "conntrack-udp-timeout-stream"},
        ),
    ] = 120
    timeout_closing: Annotated[
        int, Meta(ge=1, le=600, description="Seconds until a TCP flow ends after FIN or RST.", extra=_SECONDS)
    ] = 20
    resync_interval: Annotated[
        int,
        Meta(
            ge=1,
            le=86400,
            description="Seconds between comparisons of the maps with their intended contents.",
            extra=_SECONDS,
        ),
    ] = 60
    verify_every: Annotated[
        int,
        Meta(
            ge=0,
            le=86400,
            description="Seconds between comparisons with the objects of a new list, which find a watch that stopped silently"
            " (0: never).",
            extra=_SECONDS,
        ),
    ] = 60
    sweep_interval: Annotated[
        int, Meta(ge=1, le=3600, description="Seconds between sweeps of the flow tables.", extra=_SECONDS)
    ] = 10

    @property
    def snat_port_range(self) -> tuple[int, int]:
        """First and last SNAT port."""
        first, _, last = self.snat_ports.partition("-")
        return int(first), int(last)

    @property
    def has_socket_programs(self) -> bool:
        """Whether processes of the node reach Services by socket programs, the only way to serve native pools there."""
        return self.socket_lb or bool(self.apilb)

    @property
    def leaves_older_flows(self) -> bool:
        """Whether what is older than the programs is left to another proxy."""
        return self.new_flows == "syn"

    @property
    def serves_sockets_alone(self) -> bool:
        """Whether socket programs do all the work: there is no device whose packets would be balanced."""
        return self.has_socket_programs and not (self.device or self.pod_device)

    @property
    def has_manifests(self) -> bool:
        """Whether Services of Kubernetes are served, from any source."""
        return bool(self.manifests or self.synthetic or self.has_kubernetes)

    @property
    def has_kubernetes(self) -> bool:
        """Whether a Kubernetes API is among the sources."""
        return bool(self.kubeconfig or self.in_cluster)

    @property
    def healthz_listen_addresses(self) -> Words:
        """The ADDRESS:PORTs that serve /healthz."""
        return self._listen(self.healthz_bind_address, HEALTHZ)

    @property
    def metrics_listen_addresses(self) -> Words:
        """The ADDRESS:PORTs that serve metrics beside metrics-address."""
        return () if self.metrics_address else self._listen(self.metrics_bind_address, METRICS)

    @property
    def ui_hosts(self) -> Words | None:
        """Further names of the status page; None: there is no page."""
        return self.ui_host if self.ui else None

    def _listen(self, text: str, default: Words) -> Words:
        if text == AUTO:
            return default if self.has_kubernetes and not self.shadow else ()
        return (text,) if text else ()

    @property
    def node_addresses(self) -> tuple[bytes, ...]:
        """--node-ip, packed."""
        return tuple(parse_ip(text) for text in self.node_ip)

    @property
    def name_of_node(self) -> str:
        """The configured node name, else the host's."""
        return self.node_name or socket.gethostname()


class Name(NamedTuple):
    """A key, with its flag and environment variable."""

    key: str

    @property
    def field(self) -> str:
        """The key as a keyword argument."""
        return self.key.replace("-", "_")

    @property
    def flag(self) -> str:
        """Long flag."""
        return "--" + self.key

    @property
    def env(self) -> str:
        """Environment variable."""
        return ENV_PREFIX + self.field.upper()


class Option(NamedTuple):
    """One key in the form of the command line."""

    field: str
    key: str
    kind: Literal["text", "number", "switch", "list", "choice"]
    choices: Words
    default: Any
    help: str
    least: int | None = None
    most: int | None = None
    unit: str = ""
    other_name: str = ""  # kube-proxy's name, if it has the same meaning

    @property
    def flag(self) -> str:
        """Long flag."""
        return Name(self.key).flag

    @property
    def env(self) -> str:
        """Environment variable."""
        return Name(self.key).env

    @property
    def names(self) -> tuple[Name, ...]:
        """All its names, its own first."""
        return tuple(Name(key) for key in (self.key, self.other_name) if key)


def options() -> tuple[Option, ...]:
    """List every key in the order of the record."""
    return tuple(_option(item) for item in msgspec.structs.fields(Config))


def _option(item: msgspec.structs.FieldInfo) -> Option:
    kind_type, meta = get_args(item.type)
    choices: Words = ()
    if get_origin(kind_type) is Literal:
        kind, choices = "choice", get_args(kind_type)
    else:
        kind = {str: "text", int: "number", bool: "switch"}.get(kind_type, "list")
    extra = meta.extra or {}
    return Option(
        item.name,
        item.encode_name,
        kind,  # type: ignore[arg-type]
        choices,
        item.default,
        meta.description,
        meta.ge,
        meta.le,
        extra.get("unit", ""),
        extra.get("other_name", ""),
    )


OPTIONS = options()
BY_KEY = {option.key: option for option in OPTIONS}
BY_NAME = {name.key: option for option in OPTIONS for name in option.names}
