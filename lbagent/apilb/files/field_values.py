"""The allowed values of single fields of a pool file (pure). Each check raises ValueError with one sentence.

An accepted value cannot end a word or a line of haproxy.cfg: no blanks, quotes, backslashes, `#`, `$` or control characters.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from ipaddress import ip_address
from typing import NamedTuple

from lbagent.model.address import parse_port
from lbagent.value_errors import shown

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}", re.ASCII)  # Docker's rule for names of containers
_HOST = re.compile(
    r"[a-zA-Z0-9_]([a-zA-Z0-9_-]*[a-zA-Z0-9_])?(\.[a-zA-Z0-9_]([a-zA-Z0-9_-]*[a-zA-Z0-9_])?)*\.?", re.ASCII
)
_URL_PATH = re.compile(r"/[a-zA-Z0-9._~!&()*+,;=:@%/?-]*", re.ASCII)
_HOST_HEADER = re.compile(r"[a-zA-Z0-9._:\[\]-]+", re.ASCII)
_PATH = re.compile(r"/[a-zA-Z0-9._~!&()*+,;=:@%/-]*", re.ASCII)
_IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._/:@-]*", re.ASCII)
_PEM = re.compile(r"\s*-----BEGIN ([A-Z ]*PRIVATE KEY)-----\n(.+)\n-----END \1-----\s*", re.DOTALL)
_MAX_HOST = 253  # RFC 1035 2.3.4


class HostPort(NamedTuple):
    """A host, without brackets, and its port; 0 for none."""

    host: str
    port: int

    @property
    def is_ip(self) -> bool:
        """Whether the host is an address, so that no resolver is needed."""
        return _is_ip(self.host)

    def __str__(self) -> str:
        """Return `HOST:PORT`, `[ADDRESS]:PORT`, or the host alone."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host


def parse_server(text: str) -> HostPort:
    """Return the host and port of `HOST[:PORT]`, `[ADDRESS]:PORT` or an IPv6 address."""
    found = _split(text)
    if found is None or not _is_host(found.host):
        raise ValueError(f"{shown(text)} is not HOST[:PORT]")
    return found


def parse_bind(text: str) -> HostPort:
    """Return the address and port of a bind; `*` and a missing address are 0.0.0.0, as in HAProxy."""
    found = _split(f"*{text}" if text.startswith(":") else text)
    if found is None or not found.port or not (found.host == "*" or _is_host(found.host)):
        raise ValueError(f"{shown(text)} is not ADDRESS:PORT")
    return found._replace(host="0.0.0.0") if found.host == "*" else found  # noqa: S104 - the operator sets it


def check_address(text: str) -> None:
    """Check the address of an ssh server."""
    if not _is_host(text):
        raise ValueError(f"{shown(text)} is neither an address nor a host name")


def check_name(text: str) -> None:
    """Check the name of a container."""
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"{shown(text)} is not a container name: letters, digits, and after the first character also _ . -"
        )


def check_image(text: str) -> None:
    """Check the reference of an image."""
    if not _IMAGE.fullmatch(text):
        raise ValueError(f"{shown(text)} is not an image reference")


def check_file(text: str) -> None:
    """Check the path of a file on a host."""
    if not _PATH.fullmatch(text):
        raise ValueError(f"{shown(text)} is not an absolute path without blanks and quotes")
    if text.endswith("/"):
        raise ValueError(f"{shown(text)} is a folder; give the path of a file")


def check_config_path(text: str) -> None:
    """Check the path of a file whose folder is given to a container."""
    check_file(text)
    if posixpath.dirname(posixpath.normpath(text)) in ("/", "//"):
        raise ValueError(
            f"{shown(text)} is in the root folder; give a file in a folder that can be mounted into a container"
        )


def check_docker_host(text: str) -> None:
    """Check the address of a container runtime's socket."""
    path = text.removeprefix("unix://")
    if path == text or not _PATH.fullmatch(path):
        raise ValueError(f"{shown(text)} is not unix:///PATH")


def check_url_path(text: str) -> None:
    """Check the path of a health check."""
    if not _URL_PATH.fullmatch(text):
        raise ValueError(f"{shown(text)} is not a path like /healthz")


def check_host_header(text: str) -> None:
    """Check the Host header of a health check."""
    if not _HOST_HEADER.fullmatch(text):
        raise ValueError(f"{shown(text)} is not a host name")


def check_word(text: str) -> None:
    """Check an argument of a command."""
    if not text or "\0" in text:
        raise ValueError("an argument is empty, or contains a NUL")


def check_private_key(text: str) -> None:
    """Check that a private key is PEM. The message does not show it."""
    match = _PEM.fullmatch(text.replace("\r\n", "\n"))
    lines = match[2].split("\n") if match else []
    body = "".join(each for each in lines if ":" not in each)  # RFC 1421 headers: Proc-Type, DEK-Info
    try:
        if match and base64.b64decode(body, validate=True):
            return
    except (binascii.Error, ValueError):
        pass
    raise ValueError("it is not a private key in PEM: -----BEGIN ... PRIVATE KEY----- and what follows")


def check_host_key(text: str) -> None:
    """Check a host key: `ssh-ed25519 AAAA...`, as in a line of known_hosts."""
    words = text.split()
    try:
        if len(words) >= 2 and base64.b64decode(words[1], validate=True)[4:].startswith(words[0].encode()):
            return  # RFC 4253 6.6: the key begins with its type
    except (binascii.Error, ValueError):
        pass
    raise ValueError(f"{shown(text)} is not a host key like 'ssh-ed25519 AAAA...'")


def _split(text: str) -> HostPort | None:
    """Return host and port; None for an invalid port or unbalanced brackets."""
    if _is_ip(text):
        return HostPort(text, 0)
    host, colon, port = text.rpartition(":")
    if not colon:
        host = text
    if text.endswith("]"):  # [ADDRESS]
        host, colon = text, ""
    if host.startswith("["):
        if not host.endswith("]") or ":" not in host or not _is_ip(host[1:-1]):
            return None
        host = host[1:-1]
    elif ":" in host:
        return None
    try:
        number = parse_port(port) if colon else 0
    except ValueError:
        return None
    return None if colon and not number else HostPort(host, number)


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def _is_host(text: str) -> bool:
    if _is_ip(text):
        return True
    numeric = text.rpartition(".")[2].isdecimal()  # 10.0.0.256 is a wrong address, not a name
    return len(text) <= _MAX_HOST and bool(_HOST.fullmatch(text)) and not numeric
