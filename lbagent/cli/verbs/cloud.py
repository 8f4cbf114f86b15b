"""`lbagent cloud`: a controller gives addresses to Services of type LoadBalancer, or `plan` shows them for manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lbagent.cli import output
from lbagent.cli.options import Duration, form_option
from lbagent.cli.output import Column, Listing, Row, Style
from lbagent.errors import ConfigError

if TYPE_CHECKING:
    from lbagent.sources.folder.manifest_files import ManifestFiles


def _mappings(row: Row) -> str:
    """Return the ports of a row: the router's ports and their targets."""
    each = "{external_port}/{protocol}->{internal_port}".format
    return ",".join(each(**mapping) for mapping in row["mappings"])


PLANNED = Listing(
    (
        Column("SERVICE", lambda row: row["service"], cut=True),
        Column("ACTION", lambda row: row["action"]),
        Column("ADDRESSES", lambda row: ",".join(row["addresses"])),
        Column("POOL", lambda row: row["pool"]),
        Column("MAPPINGS", _mappings),
        Column("MESSAGE", lambda row: row["message"], cut=True),
    ),
    name=lambda row: str(row["service"]),
    key=lambda row: row["service"],
)
POOLS = Listing(
    (
        Column("POOL", lambda row: row["pool"]),
        Column("FAMILY", lambda row: row["family"]),
        Column("IN USE", lambda row: row["in_use"]),
        Column("ADDRESSES", lambda row: row["addresses"]),
        Column("PRIORITY", lambda row: row["priority"]),
        Column("AUTO", lambda row: row["auto_assign"]),
        Column("ANNOUNCE", lambda row: ",".join(row["announce"])),
    ),
    name=lambda row: f"{row['pool']}/{row['family']}",
    key=lambda row: (row["pool"], row["family"]),
)
PROVIDERS = Listing(
    (Column("NAME", lambda row: row["name"]), Column("SUMMARY", lambda row: row["summary"])),
    name=lambda row: str(row["name"]),
    key=lambda row: row["name"],
)
LEASE = "Lease duration; another controller takes over after it (15s)."
RETRY = "Pause after the first failure of a Service; it doubles (5s)."
LEASE_NAME = "Name of the Lease; controllers with the same name elect one leader."
CONTROLLERS = "Controllers to run: * is all, -NAME excludes one; as in Kubernetes' cloud-controller-manager."
CLUSTER_CIDR = "Address range of pods; only routes within it are created and removed."
CONFIG = "The provider's configuration; for pool: the pools file; edge needs none."


@click.group()
def cloud() -> None:
    """Addresses for Services of type LoadBalancer."""


@cloud.command(short_help="Run the controller that gives addresses to Services.")
@click.option("--provider", required=True, metavar="NAME", help="The provider; `cloud providers` lists them.")
@click.option("--config", default="", metavar="FILE", help=CONFIG + " A change is read while it runs.")
@click.option("--kubeconfig", default="", metavar="FILE", help="Credentials for the API server.")
@click.option("--in-cluster", is_flag=True, help="Use the API server and the service account of this Pod.")
@click.option("--cluster-name", default="kubernetes", show_default=True, metavar="NAME", help="The cluster's name.")
@click.option("--node-name", default="", metavar="NAME", help="Name of this node (default: the host's name).")
@click.option(
    "--lb-class", default="", metavar="NAME", help="Serve Services of this class only (default: those without one)."
)
@click.option(
    "--leader-elect-resource-name",
    "lease_name",
    default="lbagent-cloud",
    show_default=True,
    metavar="NAME",
    help=LEASE_NAME,
)
@click.option("--controllers", default="*", show_default=True, metavar="LIST", help=CONTROLLERS)
@click.option("--cluster-cidr", default="", metavar="CIDR[,CIDR]", help=CLUSTER_CIDR)
@click.option(
    "--node-status-update-frequency",
    "node_addresses_period_s",
    type=Duration(),
    default=300.0,
    metavar="TIME",
    help="Interval at which Node addresses are read from the provider (5m).",
)
@click.option(
    "--node-monitor-period",
    "node_monitor_period_s",
    type=Duration(),
    default=5.0,
    metavar="TIME",
    help="Interval at which machines of Nodes that are not ready are read (5s).",
)
@click.option(
    "--route-reconciliation-period",
    "route_period_s",
    type=Duration(),
    default=10.0,
    metavar="TIME",
    help="Interval at which routes to pods are checked (10s).",
)
@click.option("--namespace", default="kube-system", show_default=True, metavar="NAME", help="Namespace of the Lease.")
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    help="Elect a leader among several controllers.",
)
@click.option("--lease-duration", "lease_duration_s", type=Duration(), default=15.0, metavar="TIME", help=LEASE)
@click.option(
    "--concurrent-syncs",
    type=click.IntRange(1, 256),
    default=4,
    show_default=True,
    help="Services that are handled in parallel.",
)
@click.option("--retry-base", "retry_base_s", type=Duration(), default=5.0, metavar="TIME", help=RETRY)
@click.option(
    "--retry-max",
    "retry_max_s",
    type=Duration(),
    default=300.0,
    metavar="TIME",
    help="Longest pause between two attempts (300s).",
)
@click.option(
    "--metrics-address", default="", metavar="IP:PORT", help="Address on which /metrics is served (default: none)."
)
@click.option(
    "--health-address", default="", metavar="IP:PORT", help="Address on which /healthz is served (default: none)."
)
@click.option(
    "--log-format", type=click.Choice(("text", "json")), default="text", show_default=True, help="Log format."
)
def run(*, in_cluster: bool, kubeconfig: str, **settings: Any) -> None:
    """Watch Services of type LoadBalancer, create their balancers with the provider, and write the addresses to their status.

    With a provider of machines or routes, also: initialise Nodes, remove Nodes without a machine, create routes to pods.

    SIGTERM ends it; the addresses stay. Exit code 2: wrong usage, or a wrong configuration.
    """
    if in_cluster == bool(kubeconfig):
        raise ConfigError("one of --kubeconfig FILE and --in-cluster is needed")
    from lbagent.cloud.controller.cloud_run import run_cloud
    from lbagent.cloud.controller.cloud_settings import CloudSettings

    run_cloud(CloudSettings(kubeconfig=kubeconfig, **settings))


@cloud.command(short_help="Show which Service would get which address.")
@click.option("-f", "--manifests", "folder", required=True, metavar="DIR|FILE", help="Folder or file of manifests.")
@click.option("--provider", "name", required=True, metavar="NAME", help="The provider; `cloud providers` lists them.")
@click.option("--config", "config", default="", metavar="FILE", help=CONFIG)
@click.option(
    "--lb-class", default="", metavar="NAME", help="Serve Services of this class only (default: those without one)."
)
@click.option("--cluster-name", default="kubernetes", show_default=True, metavar="NAME", help="The cluster's name.")
@form_option("table", "json")
def plan(folder: str, name: str, config: str, lb_class: str, cluster_name: str, form: str) -> int:
    """Show which addresses a provider would give to the Services of these manifests. Services keep the addresses in their status.

    Exit code 0: every Service gets its addresses. 1: something was refused. 2: wrong usage, or a wrong configuration.
    """
    from lbagent.cloud.providers import provider

    planned = provider(name).plan(config)
    loaded = _load(folder)
    rows = planned(loaded.snapshot(), lb_class, cluster_name)
    problems = loaded.problems()
    for message in problems:
        click.echo(str(message), err=True)
    output.show(PLANNED, [row.as_row() for row in rows], Style(form))
    return int(any(row.is_refused for row in rows) or any(not message.warning for message in problems))


@cloud.command(short_help="Show how many addresses of each pool are in use.")
@click.option("--config", "config", required=True, metavar="FILE", help="The pools file.")
@click.option(
    "-f", "--manifests", "folder", default="", metavar="DIR|FILE", help="Manifests of Services that have addresses."
)
@form_option("table", "json")
def pools(config: str, folder: str, form: str) -> None:
    """Show each pool's addresses, and how many of them the Services and Nodes of manifests use."""
    from lbagent.cloud.pool_provider import pool_rows
    from lbagent.objects.records import ObjectSnapshot
    from lbagent.pools.read_pools import read_pools

    file = read_pools(config)
    rows: list[Row] = pool_rows(file, _load(folder).snapshot() if folder else ObjectSnapshot())
    output.show(POOLS, rows, Style(form))


@cloud.command(short_help="List the available providers.")
@form_option("table", "json")
def providers(form: str) -> None:
    """List the providers."""
    from lbagent.cloud import providers as registry

    rows: list[Row] = [{"name": name, "summary": summary} for name, summary in registry.summaries().items()]
    output.show(PROVIDERS, rows, Style(form))


def _load(path: str) -> ManifestFiles:
    from lbagent.sources.folder import manifest_files

    try:
        return manifest_files.load(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a folder of manifests, or a file") from None
