"""Debian's dockerd without installing it, with all its data in a folder; "host" is its network namespace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.lab.debian_packages import DOCKER, unpacked
from tests.lab.netns import LabError, Namespace, wait_for
from tests.lab.podman import haproxy_archive

IMAGE = "haproxy:lab"
ENTER = """
mount --make-rprivate /
mount -t tmpfs tmpfs {folder}/etc && mkdir {folder}/etc/upper {folder}/etc/work
mount -t tmpfs tmpfs /run
mount -t overlay overlay -o lowerdir=/etc,upperdir={folder}/etc/upper,workdir={folder}/etc/work /etc
exec "$@"
"""  # it writes a key into /etc/docker, and plugins' folders into /run
LIMITS = '{"default-ulimits": {"nofile": {"Name": "nofile", "Hard": 1024, "Soft": 1024}}}'  # a root without CAP_SYS_RESOURCE has no more


class Dockerd:
    """One daemon, with an image of HAProxy; `close` removes it with its containers. `docker_host` is its address."""

    def __init__(self, folder: Path, space: Namespace) -> None:
        """Start it in a namespace, with its files in a new folder with a short path."""
        (folder / "etc").mkdir(parents=True)
        self.folder, self.space = folder, space
        self.socket = folder / "docker.sock"
        self.docker_host = f"unix://{self.socket}"
        self._packages = unpacked("docker", DOCKER)
        self._environment = self._packages.environment()
        (folder / "daemon.json").write_text(LIMITS)
        words = {"config-file": "daemon.json", "data-root": "data", "exec-root": "run", "pidfile": "pid"}
        argv = [
            str(self._packages.program("dockerd")),
            *(f"--{name}={folder / value}" for name, value in words.items()),
        ]
        argv += [
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
            "--ip-masq=false",
            f"--host={self.docker_host}",
        ]
        argv += ["--exec-opt=native.cgroupdriver=cgroupfs"]
        with (folder / "dockerd.log").open("w") as log:
            self.process = space.popen(
                ["unshare", "-m", "sh", "-ec", ENTER.format(folder=folder), "sh", *argv],
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        wait_for(self.socket.exists, "dockerd's socket", 60)
        self.run("import", "--change", "ENV PATH=/usr/sbin:/usr/bin", str(haproxy_archive(folder)), IMAGE)

    def run(self, *words: str) -> str:
        """Run a command of docker's client and return its output."""
        argv = [str(self._packages.program("docker")), f"--host={self.docker_host}", *words]
        done = subprocess.run(argv, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(
                f"docker {' '.join(words)}: {done.stderr.strip()}\n{(self.folder / 'dockerd.log').read_text()[-2000:]}"
            )
        return done.stdout

    def close(self) -> None:
        """Remove all containers and end it."""
        if containers := self.run("ps", "--all", "--quiet").split():
            self.run("rm", "--force", *containers)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
