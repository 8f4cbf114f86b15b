"""haproxy.cfg of an instance (pure). TLS passes through; only health checks use it.

Source: flexkube's apiloadbalancer: by default exactly its directives. Health check and on-marked-down are lbagent's.
"""

from __future__ import annotations

import posixpath

from lbagent.apilb.files.field_values import parse_bind, parse_server
from lbagent.apilb.instance import Instance, OnMarkedDown
from lbagent.probes.probe_spec import ProbeSpec

CONTAINER_FOLDER = "/usr/local/etc/haproxy"  # mount point of the folder of hostConfigPath in a container
_TEMPLATE = """\
defaults
  mode tcp
  timeout connect 5s
  timeout client 30s
  timeout client-fin 30s
  timeout server 30s
  timeout tunnel 21d

frontend kube-apiserver
  bind {bind}
  default_backend kube-apiserver

backend kube-apiserver
{backend}
"""


def haproxy_config(instance: Instance, *, ca_file: str = "") -> str:
    """Return the text. `ca_file`: the path of the CA file for HAProxy, if it differs from the pool file's."""
    check = instance.health_check or ProbeSpec()
    backend = [f"option httpchk GET {check.path} HTTP/1.1", f"http-check send hdr Host {check.host}"]
    if instance.health_check:
        backend.append(f"timeout check {_time(check.timeout)}")
    authorities = ca_file or check.ca_file
    options = f"verify required ca-file {authorities}" if check.ca_file else "verify none"
    options += " check check-ssl"
    if instance.health_check:
        options += f" inter {_time(check.interval)} fall {check.fall} rise {check.rise}"
    if instance.on_marked_down is OnMarkedDown.RESET:
        options += " on-marked-down shutdown-sessions"
    backend += [f"server {at} {_server(instance, text)} {options}" for at, text in enumerate(instance.servers)]
    return _TEMPLATE.format(bind=_bind(instance.bind_address), backend="\n".join(f"  {line}" for line in backend))


def container_config(instance: Instance) -> str:
    """Return the text for a container, which has only the folder of hostConfigPath, at CONTAINER_FOLDER.

    Raises ValueError if the CA file is not below that folder.
    """
    ca_file = instance.health_check.ca_file if instance.health_check else ""
    if not ca_file:
        return haproxy_config(instance)
    folder = posixpath.dirname(posixpath.normpath(instance.host_config_path))
    inside = posixpath.relpath(ca_file, folder)
    if inside.startswith("../"):
        raise ValueError(
            f"healthCheck.caFile {ca_file} is not in {folder}, the only folder that is mounted into the container"
        )
    return haproxy_config(instance, ca_file=f"{CONTAINER_FOLDER}/{inside}")


def _bind(text: str) -> str:
    """Return the bind as written: HAProxy has `*` for the unspecified address."""
    return text if ":" not in parse_bind(text).host else str(parse_bind(text))


def _server(instance: Instance, text: str) -> str:
    """Return HOST:PORT, with the bind's port if there is none: without one HAProxy would use the client's port, and no check."""
    server = parse_server(text)
    return str(server if server.port else server._replace(port=parse_bind(instance.bind_address).port))


def _time(seconds: float) -> str:
    """Return a time in HAProxy's form: whole seconds or milliseconds."""
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{round(seconds * 1000)}ms"
