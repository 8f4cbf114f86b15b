"""`lbagent cloud`: addresses for Services of type LoadBalancer, given by a controller or planned from manifests."""

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
    """Return the ports of a row: of the router, and where they lead."""
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
LEASE = "A leader that is not heard of for so long is replaced (15s)."
RETRY = "Pause after the first failure of a Service; it doubles (5s)."
LEASE_NAME = "The Lease; processes of one name are one group."
CONTROLLERS = "Controllers to run, * for all, -NAME for not this one; as of kube's cloud-controller-manager."
CLUSTER_CIDR = "The cluster's pods; routes are made, and removed, in there only."
CONFIG = "The provider's configuration; of pool: the file of pools; edge needs none."


@click.group()
def cloud() -> None:
    """Addresses for Services of type LoadBalancer."""


@cloud.command(short_help="Give Services their addresses: the controller, in the foreground.")
@click.option("--provider", required=True, metavar="NAME", help="The provider; `cloud providers` lists them.")
@click.option("--config", default="", metavar="FILE", help=CONFIG + " Read again when it changes.")
@click.option("--kubeconfig", default="", metavar="FILE", help="How the API server is reached.")
@click.option("--in-cluster", is_flag=True, help="The API server of the Pod this runs in, with its service account.")
@click.option("--cluster-name", default="kubernetes", show_default=True, metavar="NAME", help="The cluster's name.")
@click.option("--node-name", default="", metavar="NAME", help="The node this runs on (default: the host's name).")
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
    help="How often the addresses of Nodes are asked for (5m).",
)
@click.option(
    "--node-monitor-period",
    "node_monitor_period_s",
    type=Duration(),
    default=5.0,
    metavar="TIME",
    help="How often the machines of Nodes that are not ready are asked for (5s).",
)
@click.option(
    "--route-reconciliation-period",
    "route_period_s",
    type=Duration(),
    default=10.0,
    metavar="TIME",
    help="How often the routes to pods are looked at (10s).",
)
@click.option("--namespace", default="kube-system", show_default=True, metavar="NAME", help="Where the Lease is.")
@click.option("--leader-elect/--no-leader-elect", default=True, show_default=True, help="One of several leads.")
@click.option("--lease-duration", "lease_duration_s", type=Duration(), default=15.0, metavar="TIME", help=LEASE)
@click.option(
    "--concurrent-syncs", type=click.IntRange(1, 256), default=4, show_default=True, help="Services at a time."
)
@click.option("--retry-base", "retry_base_s", type=Duration(), default=5.0, metavar="TIME", help=RETRY)
@click.option(
    "--retry-max", "retry_max_s", type=Duration(), default=300.0, metavar="TIME", help="Longest pause (300s)."
)
@click.option("--metrics-address", default="", metavar="IP:PORT", help="Where /metrics is answered (default: nowhere).")
@click.option("--health-address", default="", metavar="IP:PORT", help="Where /healthz is answered (default: nowhere).")
@click.option(
    "--log-format", type=click.Choice(("text", "json")), default="text", show_default=True, help="Of the log lines."
)
def run(*, in_cluster: bool, kubeconfig: str, **settings: Any) -> None:
    """Watch Services of type LoadBalancer, have the provider make their balancers, and write the addresses to their status.

    With a provider that knows machines or routes, also: initialise Nodes, remove those whose machine is gone, make routes to pods.

    SIGTERM ends it; the addresses stay. Exit code 2: wrong usage, or a wrong configuration.
    """
    if in_cluster == bool(kubeconfig):
        raise ConfigError("one of --kubeconfig FILE and --in-cluster is needed")
    from lbagent.cloud.controller.cloud_run import run_cloud
    from lbagent.cloud.controller.cloud_settings import CloudSettings

    run_cloud(CloudSettings(kubeconfig=kubeconfig, **settings))


@cloud.command(short_help="Who would get which address.")
@click.option("-f", "--manifests", "folder", required=True, metavar="DIR|FILE", help="Folder or file of manifests.")
@click.option("--provider", "name", required=True, metavar="NAME", help="The provider; `cloud providers` lists them.")
@click.option("--config", "config", default="", metavar="FILE", help=CONFIG)
@click.option(
    "--lb-class", default="", metavar="NAME", help="Serve Services of this class only (default: those without one)."
)
@click.option("--cluster-name", default="kubernetes", show_default=True, metavar="NAME", help="The cluster's name.")
@form_option("table", "json")
def plan(folder: str, name: str, config: str, lb_class: str, cluster_name: str, form: str) -> int:
    """Show what a provider would give to the Services of these manifests. What is in their status they have already.

    Exit code 0: every Service gets what it asks for. 1: something was refused. 2: wrong usage, or a wrong configuration.
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


@cloud.command(short_help="How much of each pool is in use.")
@click.option("--config", "config", required=True, metavar="FILE", help="The file of pools.")
@click.option(
    "-f", "--manifests", "folder", default="", metavar="DIR|FILE", help="Manifests whose Services have addresses."
)
@form_option("table", "json")
def pools(config: str, folder: str, form: str) -> None:
    """Show each pool's addresses, and how many the Services and Nodes of manifests have."""
    from lbagent.cloud.pool_provider import pool_rows
    from lbagent.objects.records import ObjectSnapshot
    from lbagent.pools.read_pools import read_pools

    file = read_pools(config)
    rows: list[Row] = pool_rows(file, _load(folder).snapshot() if folder else ObjectSnapshot())
    output.show(POOLS, rows, Style(form))


@cloud.command(short_help="The providers there are.")
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
