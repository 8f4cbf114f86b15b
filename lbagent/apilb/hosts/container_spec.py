"""The specification of an HAProxy container, and whether a container matches it (pure).

Source: flexkube's apiloadbalancer (network host, user 65534, unless-stopped). The folder is mounted, not the file: a bind mount
of a file keeps the old file when a rename replaces it.
"""

from __future__ import annotations

import posixpath
from typing import Any

from msgspec import Struct

from lbagent.apilb.haproxy_config import CONTAINER_FOLDER
from lbagent.apilb.hosts.host_files import CONTAINER_USER

POOL_LABEL = "io.lbagent.pool"
DOCKER_HUB = ("docker.io/library/", "docker.io/", "index.docker.io/library/", "index.docker.io/")


class ContainerSpec(Struct, frozen=True, kw_only=True):
    """One container: its name, image, pool, and the file that it reads on the host."""

    pool: str
    name: str
    image: str
    host_config_path: str

    @property
    def folder(self) -> str:
        """Return the mounted folder of the host."""
        return posixpath.dirname(posixpath.normpath(self.host_config_path))

    def inside(self, path: str) -> str:
        """Return the path of a file of that folder in the container."""
        return f"{CONTAINER_FOLDER}/{posixpath.basename(path)}"

    @property
    def entrypoint(self) -> list[str]:
        """Return the program: given explicitly, so that an image's entry point cannot change the arguments."""
        return ["haproxy"]

    @property
    def command(self) -> list[str]:
        """Return its arguments: a master with workers (-W), which reloads its file on SIGUSR2; in the foreground (-db)."""
        return ["-W", "-db", "-f", self.inside(self.host_config_path)]


def is_ours(found: dict[str, Any], pool: str) -> bool:
    """Return whether the label of a container names this pool."""
    labels = found.get("Config", {}).get("Labels") or {}
    return bool(labels.get(POOL_LABEL) == pool)


def spec_matches(found: dict[str, Any], spec: ContainerSpec) -> bool:
    """Return whether a container (as the API shows it) matches the spec; its image is compared elsewhere."""
    config, host = found.get("Config", {}), found.get("HostConfig", {})
    mounts = [(m.get("Type"), m.get("Source"), m.get("Destination"), m.get("RW")) for m in found.get("Mounts") or ()]
    return (
        is_ours(found, spec.pool)
        and str(config.get("User")) == str(CONTAINER_USER)
        and _words(config.get("Entrypoint")) == spec.entrypoint
        and _words(config.get("Cmd")) == spec.command
        and host.get("NetworkMode") == "host"
        and (host.get("RestartPolicy") or {}).get("Name") == "unless-stopped"
        and mounts == [("bind", spec.folder, CONTAINER_FOLDER, False)]
    )


def _words(value: object) -> list[str]:
    return [value] if isinstance(value, str) else [str(each) for each in value] if isinstance(value, list) else []


def image_name(found: str, wanted: str) -> str:
    """Return the image's name; the desired one if both name one image (podman writes names of Docker Hub in full)."""
    return wanted if full_name(found) == full_name(wanted) else found


def full_name(image: str) -> str:
    """Return an image's name without the default registry, and with its tag."""
    for prefix in DOCKER_HUB:
        image = image.removeprefix(prefix)
    if "@" in image or ":" in image.rpartition("/")[2]:
        return image
    return f"{image}:latest"
