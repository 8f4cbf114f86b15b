"""The containers of one host, by Docker's API (v1.38) over a unix socket: dockerd and podman's service.

The library's calls block, so each runs in a thread. Its exceptions become LbErrors with host and container.
Differences: for a name in use Docker returns 409 and podman 500; for a missing container both return 404.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from lbagent.apilb.haproxy_config import CONTAINER_FOLDER
from lbagent.apilb.hosts.container_spec import POOL_LABEL, ContainerSpec, full_name
from lbagent.apilb.hosts.host_files import CONTAINER_USER
from lbagent.errors import ConfigError, HostUnreachable, LbError, NotFound, Refused

T = TypeVar("T")
API_VERSION = "1.38"
ANSWER_S = 15  # timeout of the first answer of a runtime
STOP_S = 30  # from SIGTERM to SIGKILL (flexkube's)
WORK_S = STOP_S + 30  # timeout of a longer request
PULL_S = 600
SPARE_S = 5
LOG_LINES = 50
LOG_RETRIES, LOG_WAIT_S = 2, 0.1
PODMAN_HEADER = "Libpod-Api-Version"


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(64, "lbagent-runtime")  # hosts are read in parallel, and a hanging one keeps its thread


def socket_path(docker_host: str, host: str) -> str:
    """Return the path of a runtime's unix socket; raises ConfigError for another kind of address."""
    path = docker_host.removeprefix("unix://")
    if path == docker_host or not path.startswith("/"):
        raise ConfigError(
            f"{host}: runtime.docker.host {docker_host}: only a unix socket is possible: unix:///var/run/docker.sock"
        )
    return path


class ContainerRuntime:
    """One runtime. Every call raises HostUnreachable if it does not answer, LbError if it refuses."""

    def __init__(self, host: str, docker_host: str, path: str) -> None:
        """`host` and `docker_host` are for messages; `path` is the socket on this host."""
        self.host, self.docker_host, self._path = host, docker_host, path
        self._client: Any = None

    async def open(self) -> None:
        """Check that a runtime answers.

        podman sends its version with a ping; its /version runs several programs and takes a hundred times as long.
        """
        if await self.call("ping", _is_our_podman, ANSWER_S):
            return
        found = await self.call("version", lambda client: client.version(api_version=False), ANSWER_S)
        if not isinstance(found, dict) or not found.get("ApiVersion"):
            raise HostUnreachable(self._no_runtime())
        newest, oldest = str(found["ApiVersion"]), str(found.get("MinAPIVersion") or API_VERSION)
        if _numbers(newest) < _numbers(API_VERSION):
            raise HostUnreachable(
                f"{self.host}: {self.docker_host} has version {newest} of Docker's API; {API_VERSION} is needed"
            )
        if _numbers(oldest) > _numbers(API_VERSION):
            self._client._version = oldest  # noqa: SLF001  # a newer Docker has dropped ours; what we use is the same there

    async def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            self._client.close()

    async def inspect(self, *, container_id: str = "", name: str = "") -> dict[str, Any] | None:
        """Return the API's object of a container with this id, or with exactly this name; None if there is none."""
        import docker.errors

        asked = container_id or name

        def ask(client: Any) -> dict[str, Any] | None:
            try:
                found: dict[str, Any] = client.inspect_container(asked)
            except docker.errors.NotFound:
                return None
            return found

        found = await self.call(asked, ask)
        if found is None or (container_id and found.get("Id") == container_id):
            return found
        return (
            found if name and str(found.get("Name", "")).lstrip("/") == name else None
        )  # a name may be the prefix of an id

    async def has_image(self, image: str) -> bool:
        """Return whether it has an image."""
        import docker.errors

        def ask(client: Any) -> bool:
            try:
                client.inspect_image(image)
            except docker.errors.NotFound:
                return False
            return True

        return await self.call(image, ask)

    async def pull(self, image: str) -> None:
        """Pull an image."""
        output = str(
            await self.call(image, lambda client: client.pull(full_name(image)), PULL_S)
        )  # without a tag all tags are pulled
        if not await self.has_image(image):
            errors = re.findall(r'"error": ?"([^"]+)', output)
            raise NotFound(f"{self.host}: {image} could not be pulled" + (f": {errors[-1]}" if errors else ""))

    async def create(self, spec: ContainerSpec) -> str:
        """Create a container and return its id. Raises Refused if the name is in use."""
        import docker.errors
        import docker.types

        mount = docker.types.Mount(CONTAINER_FOLDER, spec.folder, type="bind", read_only=True)

        def make(client: Any) -> str:
            how = client.create_host_config(
                network_mode="host", restart_policy={"Name": "unless-stopped"}, mounts=[mount]
            )
            words = {"entrypoint": spec.entrypoint, "command": spec.command, "user": str(CONTAINER_USER)}
            labels = {POOL_LABEL: spec.pool}
            try:
                made = client.create_container(spec.image, name=spec.name, labels=labels, host_config=how, **words)
            except docker.errors.APIError as error:
                output = str(error.explanation or "")
                if error.status_code == 409 or (error.status_code == 500 and "already in use" in output):
                    raise taken(self.host, spec.name) from None
                raise
            return str(made["Id"])

        return await self.call(spec.name, make, WORK_S)

    async def create_helper(self, name: str, pool: str, image: str, argv: list[str], at: str) -> str:
        """Create a root container with the host's file system mounted at a path; return its id."""
        import docker.types

        mount = docker.types.Mount(at, "/", type="bind")

        def make(client: Any) -> str:
            how = client.create_host_config(mounts=[mount], network_mode="none")
            words = {"entrypoint": argv[:1], "command": argv[1:], "user": "0", "labels": {POOL_LABEL: pool}}
            return str(client.create_container(image, name=name, host_config=how, **words)["Id"])

        return await self.call(name, make, WORK_S)

    async def start(self, container_id: str, name: str) -> None:
        """Start a container."""
        await self.call(name, lambda client: client.start(container_id), WORK_S)

    async def restart(self, container_id: str, name: str) -> None:
        """Stop and start a container: the runtime delays the restarts of one that fails repeatedly."""
        await self.call(name, lambda client: client.restart(container_id, timeout=1), WORK_S)

    async def unpause(self, container_id: str, name: str) -> None:
        """Resume a paused container."""
        await self.call(name, lambda client: client.unpause(container_id))

    async def reload(self, container_id: str, name: str) -> None:
        """Make HAProxy reload its file: SIGUSR2 for the master."""
        await self.call(name, lambda client: client.kill(container_id, signal="SIGUSR2"))

    async def remove(self, container_id: str, name: str) -> None:
        """Stop a container and remove it; it may not exist."""
        import docker.errors

        def end(client: Any) -> None:
            try:
                client.stop(container_id, timeout=STOP_S)
                client.remove_container(container_id, force=True)
            except docker.errors.NotFound:
                pass

        await self.call(name, end, WORK_S)

    async def execute(self, container_id: str, name: str, argv: list[str]) -> tuple[int, str]:
        """Run a command in a running container; return its exit code and output."""

        def work(client: Any) -> tuple[int, str]:
            made = client.exec_create(container_id, argv)
            output = bytes(client.exec_start(made["Id"]) or b"").decode(errors="replace")
            return int(client.exec_inspect(made["Id"]).get("ExitCode") or 0), output

        return await self.call(name, work, WORK_S)

    async def logs(self, container_id: str, name: str, lines: int = LOG_LINES) -> str:
        """Return the last log lines of a container, each with its time."""
        import docker.errors

        def ask(client: Any, more: int = LOG_RETRIES) -> str:
            try:
                return bytes(client.logs(container_id, timestamps=True, tail=lines)).decode(errors="replace")
            except docker.errors.APIError as error:
                if not more or not error.is_server_error():
                    raise
            time.sleep(LOG_WAIT_S)  # podman fails on a line that is being written
            return ask(client, more - 1)

        return await self.call(name, ask)

    async def call(self, subject: str, work: Callable[[Any], T], timeout_s: float = WORK_S) -> T:
        """Run a call in a thread; `subject` is its container or image."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s + SPARE_S):  # also limits an answer that arrives byte by byte
                return await loop.run_in_executor(_threads(), self._work, subject, work, timeout_s)
        except TimeoutError:
            raise self._silent(timeout_s) from None

    def _work(self, subject: str, work: Callable[[Any], T], timeout_s: float) -> T:
        import docker
        import docker.errors
        import requests.exceptions

        try:
            if self._client is None:
                self._check_socket()
                self._client = docker.APIClient(base_url=f"unix://{self._path}", version=API_VERSION)
                self._client.trust_env = (
                    False  # no proxy leads to a socket, and the search for one takes longer than the request
                )
            self._client.timeout = timeout_s
            return work(self._client)
        except docker.errors.ImageNotFound:
            raise NotFound(f"{self.host}: {subject}: no such image") from None
        except docker.errors.APIError as error:
            output = " ".join(str(error.explanation or error).split())
            raise LbError(
                f"{self.host}: {subject}: {self.docker_host} returned {error.status_code}: {output}"
            ) from None
        except requests.exceptions.Timeout:
            raise self._silent(timeout_s) from None
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError, ValueError):
            raise HostUnreachable(self._no_runtime()) from None

    def _check_socket(self) -> None:
        try:
            mode = os.stat(self._path).st_mode
        except OSError as error:
            advice = "is Docker or podman's service running?"
            raise HostUnreachable(f"{self.host}: {self.docker_host}: {error.strerror}; {advice}") from None
        if not stat.S_ISSOCK(mode):
            raise HostUnreachable(f"{self.host}: {self.docker_host} is not a socket")
        if not os.access(self._path, os.W_OK):
            raise HostUnreachable(f"{self.host}: {self.docker_host}: permission denied for this user")

    def _silent(self, timeout_s: float) -> HostUnreachable:
        return HostUnreachable(f"{self.host}: {self.docker_host} did not answer within {timeout_s:g} s")

    def _no_runtime(self) -> str:
        return f"{self.host}: the server at {self.docker_host} is neither Docker nor podman"


def _is_our_podman(client: Any) -> bool:
    url = client._url("/_ping", versioned_api=False)  # noqa: SLF001  # the library drops the headers
    headers = client.get(url, timeout=client.timeout).headers
    return PODMAN_HEADER in headers and _numbers(headers.get("Api-Version", "")) >= _numbers(API_VERSION)


def taken(host: str, name: str) -> Refused:
    """Return the error for a name that another container has."""
    return Refused(
        f"{host}: a container {name} exists and is not lbagent's; remove it or choose another name. Nothing was changed"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in version.split(".") if word.isdigit())
