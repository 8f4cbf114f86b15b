"""`lbagent doctor`: what this machine supports and what will be used."""

from __future__ import annotations

import errno
from typing import Any

import click

from lbagent.cli.options import form_option
from lbagent.cli.output import GAP, document
from lbagent.cli.setting_options import from_flags, setting_options

UNSUPPORTED = 77


@click.command()
@form_option("table", "json", "yaml")
@setting_options(
    "device", "pod_device", "attach", "bpffs", "artifact", "snat_ports", "snat_address", "socket_lb", "apilb", "cgroup"
)
@click.option("--kubernetes", is_flag=True, help="Look for what kube-proxy left on this node, too.")
def doctor(form: str, *, kubernetes: bool, **flags: Any) -> int:
    """Examine rights, kernel, programs, devices and settings. Nothing is changed.

    With --kubernetes also kube-proxy's leftovers: its nftables tables, iptables chains, IPVS device and ports, what each does to
    traffic, and the command that removes it.

    Exit code 0: the agent can run; there may be warnings. 1: there is an error. 3: the only error is a --device that does not
    exist. 77: this kernel is too old, or has no bpf(2).
    """
    from lbagent.bpf.load.loader import MIN_KERNEL
    from lbagent.bpf.run.probe import ProbeOptions, findings
    from lbagent.kernel import features
    from lbagent.net.source_findings import source_findings

    settings = from_flags(flags)
    first, last = settings.snat_port_range
    found = findings(
        ProbeOptions(
            device=settings.device,
            pod_device=settings.pod_device,
            attach=settings.attach,
            bpffs=settings.bpffs,
            artifact=settings.artifact,
            snat_ports=settings.snat_port_range,
            socket_lb=settings.has_socket_programs,
            cgroup=settings.cgroup,
        )
    )
    found += source_findings(settings.snat_address, last - first + 1, settings.bpffs)
    if kubernetes:
        from lbagent.net.kube_proxy_leftovers import kube_proxy_findings

        found += kube_proxy_findings()
    if form == "table":
        for item in found:
            click.echo(f"{item.level:<7}{GAP}{item.what}")
            if item.advice:
                click.echo(f"{'':<7}{GAP}-> {item.advice}")
    else:
        document([{"level": str(item.level), "what": item.what, "advice": item.advice} for item in found], form)
    if features.kernel_version() < MIN_KERNEL or features.can_load() == errno.ENOSYS:
        return UNSUPPORTED
    return min((item.exit_code for item in found if item.level == "error"), default=0)
