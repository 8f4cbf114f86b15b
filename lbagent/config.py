"""The configuration: one flat record, each key settable by flag, environment, file or default, in this order.

A key is the flag without its dashes (`--node-ip` is `node-ip` in the file and `LBAGENT_NODE_IP` in the environment, where a
list is separated by commas). Everything wrong is refused with the place it came from; nothing is guessed.
"""

from __future__ import annotations

import difflib
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta

from lbagent.errors import ConfigError
from lbagent.wrong_value import MAX_SHOWN, shown, wrong_type

ENV_PREFIX = "LBAGENT_"
CONFIG_ENV = "LBAGENT_CONFIG"
TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})
# fields a running agent takes over on SIGHUP; the others need a restart (which loses no packet)
RELOADABLE = frozenset(
    {
        "device", "pod_device", "attach", "node_ip", "log_format", "log_level", "external_clusterip", "snat_ports",
        "reject_rate", "timeout_new", "timeout_tcp", "timeout_udp", "timeout_closing", "resync_interval", "sweep_interval",
        "flow_table_size", "flow6_table_size", "snat_table_size", "snat6_table_size",
    }
)  # fmt: skip

Words = tuple[str, ...]


class Config(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Every setting of the agent. Times are seconds, sizes are entries."""

    manifests: Annotated[str, Meta(description="Folder with the Kubernetes manifests to serve.")] = ""
    synthetic: Annotated[
        str, Meta(description="Generated Services for measurements, SERVICES:BACKENDS (10000:10).")
    ] = ""
    device: Annotated[Words, Meta(description="Device by which service traffic arrives (repeatable).")] = ()
    pod_device: Annotated[
        Words, Meta(description="Pattern of the devices behind which this node's pods are (repeatable).")
    ] = ()
    attach: Annotated[
        Literal["auto", "xdp", "xdp-generic", "tc"], Meta(description="How programs are attached to devices.")
    ] = "auto"
    node_name: Annotated[str, Meta(description="Name of this node (default: the host's name).")] = ""
    node_ip: Annotated[Words, Meta(description="Address of this node for NodePorts and SNAT (repeatable).")] = ()
    socket: Annotated[str, Meta(description="Path of the Unix socket that serves the API.")] = "/run/lbagent/agent.sock"
    bpffs: Annotated[str, Meta(description="Folder of the pins, on a bpf file system.")] = "/sys/fs/bpf/lbagent"
    state_dir: Annotated[
        str, Meta(description="Folder of what is kept over restarts: backend states, good manifests.")
    ] = "/var/lib/lbagent"
    artifact: Annotated[str, Meta(description="File of compiled programs (default: the one in the package).")] = ""
    log_format: Annotated[Literal["text", "json"], Meta(description="Format of the log lines.")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Lowest level that is logged.")
    ] = "info"
    metrics_address: Annotated[
        str, Meta(description="ADDRESS:PORT that serves Prometheus metrics (default: none).")
    ] = ""
    external_clusterip: Annotated[bool, Meta(description="Whether sources outside the node reach ClusterIPs.")] = True
    snat_ports: Annotated[str, Meta(description="Ports for translated source addresses, FIRST-LAST, from 256 on.")] = (
        "1024-29999"
    )
    reject_rate: Annotated[
        int, Meta(ge=0, le=1_000_000, description="RST and ICMP answers to refused packets, a second and CPU.")
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
        int, Meta(ge=64, le=1 << 20, description="Fragmented datagrams that are remembered, for each IP family.")
    ] = 1 << 13
    timeout_new: Annotated[int, Meta(ge=5, le=600, description="Seconds until a flow without a reply ends.")] = 60
    timeout_tcp: Annotated[int, Meta(ge=30, le=16000, description="Seconds until an idle TCP flow ends.")] = 8000
    timeout_udp: Annotated[
        int, Meta(ge=5, le=16000, description="Seconds until an idle UDP flow with replies ends.")
    ] = 120
    timeout_closing: Annotated[
        int, Meta(ge=1, le=600, description="Seconds until a TCP flow ends after FIN or RST.")
    ] = 20
    resync_interval: Annotated[
        int, Meta(ge=1, le=86400, description="Seconds between comparisons of the maps with what was written.")
    ] = 60
    sweep_interval: Annotated[int, Meta(ge=1, le=3600, description="Seconds between sweeps of the flow tables.")] = 10

    @property
    def snat_port_range(self) -> tuple[int, int]:
        """First and last SNAT port."""
        first, _, last = self.snat_ports.partition("-")
        return int(first), int(last)

    @property
    def name_of_node(self) -> str:
        """The configured node name, else the host's."""
        return self.node_name or socket.gethostname()


class Option(NamedTuple):
    """One key as the command line shows it."""

    field: str
    key: str
    kind: Literal["text", "number", "switch", "list", "choice"]
    choices: Words
    default: Any
    help: str
    least: int | None = None
    most: int | None = None

    @property
    def flag(self) -> str:
        """Long flag."""
        return "--" + self.key

    @property
    def env(self) -> str:
        """Environment variable."""
        return ENV_PREFIX + self.field.upper()


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
    return Option(item.name, item.encode_name, kind, choices, item.default, meta.description, meta.ge, meta.le)  # type: ignore[arg-type]


_OPTIONS = options()
_BY_KEY = {option.key: option for option in _OPTIONS}


def load(flags: Mapping[str, Any], env: Mapping[str, str], file: str = "") -> Config:
    """Build the configuration: flags (by field name; None = not given) over environment over file over defaults.

    Raises ConfigError naming the flag, variable or FILE:LINE and what is wrong.
    """
    path = file or env.get(CONFIG_ENV, "")
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for origin in (_read_file(path) if path else {}, _read_env(env), _read_flags(flags)):
        for key, (value, place) in origin.items():
            values[key], places[key] = value, place
    config = _convert(values, places)
    _check(config, places)
    return config


def _read_flags(flags: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    out = {}
    for option in _OPTIONS:
        value = flags.get(option.field)
        if value is None or (option.kind == "list" and not value):
            continue
        out[option.key] = (tuple(value) if option.kind == "list" else value, option.flag)
    return out


def _read_env(env: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    return {o.key: (_from_text(o, env[o.env]), o.env) for o in _OPTIONS if o.env in env}


def _from_text(option: Option, text: str) -> Any:
    """Turn an environment variable's text into the key's type."""
    if option.kind == "list":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if option.kind == "switch":
        if text.lower() not in TRUE_WORDS | FALSE_WORDS:
            raise ConfigError(f"{option.env}: {text!r} is not a switch; use true or false")
        return text.lower() in TRUE_WORDS
    if option.kind == "number":
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"{option.env}: {text!r} is not a whole number") from None
    return text


def _read_file(path: str) -> dict[str, tuple[Any, str]]:
    """Read the YAML mapping with the line of each key."""
    import yaml  # 0.7 MiB and 10 ms that a command without a file does not pay

    try:
        with open(path, encoding="utf-8") as stream:
            node = yaml.compose(stream, yaml.CSafeLoader)
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        said = " ".join(filter(None, (getattr(error, "context", None), getattr(error, "problem", None)))) or str(error)
        raise ConfigError(f"{path}{line}: not YAML: {said}") from None
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        found = _container(node) or _shown(node)
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: a mapping of keys to values is wanted, not {found}")
    out: dict[str, tuple[Any, str]] = {}
    for key_node, value_node in node.value:
        place = f"{path}:{key_node.start_mark.line + 1}"
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else ""
        if key not in _BY_KEY:
            raise ConfigError(f"{place}: {unknown_key(key)}")
        if key in out:
            raise ConfigError(f"{place}: {key} is given twice (first at {out[key][1]})")
        place += f": {key}"
        out[key] = (_from_node(_BY_KEY[key], value_node, place), place)
    return out


def _from_node(option: Option, node: Any, place: str) -> Any:
    """Take words as they are written (`node-name: 007` is a name), numbers and switches by YAML's rules. Raises ConfigError."""
    import yaml

    scalar = isinstance(node, yaml.ScalarNode)
    null = node.tag.endswith(":null")
    if option.kind == "list":
        items: list[Any] = [node] if scalar else node.value if isinstance(node, yaml.SequenceNode) else [None]
        items = [] if null else items
        if all(isinstance(item, yaml.ScalarNode) and not item.tag.endswith(":null") for item in items):
            return tuple(item.value for item in items)
    elif option.kind in ("text", "choice"):
        if scalar:
            return "" if null else node.value
    elif scalar and node.tag == f"tag:yaml.org,2002:{'int' if option.kind == 'number' else 'bool'}":
        try:
            return yaml.constructor.SafeConstructor().construct_object(node)
        except (ValueError, LookupError):  # `!!int x`
            pass
    raise ConfigError(f"{place}: {_wrong_node(node, _KINDS[option.kind])}")


_KINDS = {
    "text": "a text",
    "choice": "a word",
    "number": "a whole number",
    "switch": "true or false",
    "list": "a text or a list of texts",
}


def _wrong_node(node: Any, wanted: str) -> str:
    """Return the sentence about a YAML value that is not what is wanted, in the words of `wrong_value.wrong_type`."""
    if node.id == "sequence" and wanted == _KINDS["list"]:
        item = next(item for item in node.value if item.id != "scalar" or item.tag.endswith(":null"))
        return f"{wanted} is wanted, and one item is {_container(item) or _shown(item)}"
    if (container := _container(node)) or node.tag.endswith(":null"):
        return f"{wanted} is wanted, not {container or _shown(node)}"
    return f"{_shown(node)} is not {wanted}"


def _container(node: Any) -> str:
    return {"mapping": "a mapping", "sequence": "a list"}.get(node.id, "")


def _shown(node: Any) -> str:
    """Return a plain YAML value: numbers and true or false as they are written, texts in quotes."""
    if node.tag.endswith(":null"):
        return "nothing"
    text = node.value
    is_number = node.tag.endswith((":int", ":float")) and text.lstrip("+-.")[:1].isdigit()
    is_switch = node.tag.endswith(":bool") and text.lower() in TRUE_WORDS | FALSE_WORDS
    return text[:MAX_SHOWN] if is_number or is_switch else shown(text)


def unknown_key(key: str) -> str:
    """Return the sentence about a key that does not exist, with the nearest one."""
    near = difflib.get_close_matches(key.replace("_", "-").lower(), _BY_KEY, n=1)
    return f"unknown key {key!r}" + (
        f"; did you mean {near[0]!r}?" if near else "; see `lbagent config show` for all keys"
    )


def _convert(values: Mapping[str, Any], places: Mapping[str, str]) -> Config:
    try:
        return msgspec.convert(dict(values), Config)
    except msgspec.ValidationError as error:
        _, _, where = str(error).partition(" - at `$.")
        key = where.rstrip("`").split("[")[0]
        raise ConfigError(f"{places.get(key, key)}: {_wrong_value(_BY_KEY[key], values.get(key))}") from None


def _wrong_value(option: Option, value: Any) -> str:
    """Return what is wrong with a value that the record refused: another word, a number out of its range, another type."""
    if option.choices:
        return f"{shown(value)} is not possible; use one of {', '.join(option.choices)}"
    if option.kind == "number" and isinstance(value, int) and not isinstance(value, bool):
        return f"{value} is not a whole number from {option.least} to {option.most}"
    return wrong_type(value, _KINDS[option.kind])


def _check(config: Config, places: Mapping[str, str]) -> None:
    """Refuse what the types cannot: powers of two, ranges, addresses."""

    def refuse(key: str, what: str) -> None:
        raise ConfigError(f"{places.get(key, key)}: {what}")

    for key, low, high in _POWERS:
        value = getattr(config, key.replace("-", "_"))
        optional = _BY_KEY[key].default == 0
        if not (optional and value == 0) and (value & (value - 1) or not low <= value <= high):
            refuse(key, f"{value} is not a power of two from {low} to {high}")
    for value in config.node_ip:
        if not _is_address(value):
            refuse("node-ip", f"{value!r} is not an IP address")
    for key, names in (("device", config.device), ("pod-device", config.pod_device)):
        for name in filter(_is_no_device, names):
            refuse(key, f"{name!r} cannot be the name of a network device")
    _check_ports(config.snat_ports, places.get("snat-ports", "snat-ports"))
    if config.maglev_table_size not in MAGLEV_SIZES:
        sizes = ", ".join(map(str, MAGLEV_SIZES))
        refuse("maglev-table-size", f"{config.maglev_table_size} is not a table size; one of {sizes} is possible")
    if config.metrics_address and not _is_address_and_port(config.metrics_address):
        refuse("metrics-address", f"{config.metrics_address!r} is not ADDRESS:PORT like 127.0.0.1:9100 or [::1]:9100")
    empty = [key for key in ("socket", "bpffs", "state-dir") if not getattr(config, key.replace("-", "_"))]
    if empty:
        refuse(empty[0], "must not be empty")
    _check_sources(config, refuse)


def _check_sources(config: Config, refuse: Callable[[str, str], None]) -> None:
    if config.synthetic and not re.fullmatch("[0-9]+:[0-9]+", config.synthetic):
        refuse("synthetic", f"{config.synthetic!r} is not SERVICES:BACKENDS, as in 10000:10")


# The primes Cilium knows; lbagent.model.maglev has the same ones (tests/test_config.py compares).
MAGLEV_SIZES = (251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071)

# key, least, most. A one-element array map holds at most 512 MiB; backends have 20 bits in a flow entry.
_POWERS: Sequence[tuple[str, int, int]] = (
    ("flow-table-size", 1 << 10, 1 << 23),
    ("flow6-table-size", 1 << 10, 1 << 22),
    ("snat-table-size", 1 << 10, 1 << 24),
    ("snat6-table-size", 1 << 10, 1 << 23),
    ("max-backends", 1 << 8, 1 << 20),
)


MIN_SNAT_PORT = 256  # a flow's entry keeps its way of forwarding where a lower port would be (docs/datapath.md)


def _check_ports(text: str, place: str) -> None:
    first, dash, last = text.partition("-")
    if not (dash and first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise ConfigError(f"{place}: {text!r} is not a port range; write FIRST-LAST, for example 1024-29999")
    low, high = int(first), int(last)
    if low < MIN_SNAT_PORT:
        raise ConfigError(
            f"{place}: {text} begins below {MIN_SNAT_PORT}; choose at least 64 ports between {MIN_SNAT_PORT} and 65535"
        )
    if not low <= high <= 65535 or high - low < 63:
        raise ConfigError(
            f"{place}: {text} must hold at least 64 ports between {MIN_SNAT_PORT} and 65535, the smaller one first"
        )


def _is_no_device(name: str) -> bool:
    return not 1 <= len(name) <= 15 or "/" in name or any(c.isspace() for c in name)


def _is_address(text: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text)
        except (OSError, ValueError):
            continue
        return True
    return False


def _is_address_and_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    return (":" in bare) == (bare != host) and _is_address(bare) and port.isdecimal() and 0 <= int(port) <= 65535
