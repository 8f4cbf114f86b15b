"""Podman's API service without installing podman and without a registry; its image of HAProxy is built from the program.

It runs in its own mount namespace (with an overlay of /etc, and its own /run and /var/lib) and in a network namespace, which is the
host's network for its containers. All its data is in a folder. The machine's file systems are the host's for its containers, with the
same paths.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from tests.lab.debian_packages import HAPROXY, PODMAN, unpacked
from tests.lab.netns import LabError, Namespace, run, wait_for

IMAGE = "localhost/haproxy:lab"
SETTINGS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
seccomp_profile = "{root}/usr/share/containers/seccomp.json"
log_driver = "k8s-file"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
conmon_path = ["{root}/usr/bin/conmon"]
helper_binaries_dir = ["{root}/usr/lib/podman"]
tmp_dir = "{folder}/libpod"
[engine.runtimes]
runc = ["{root}/usr/sbin/runc"]
"""  # limits that a root without CAP_SYS_RESOURCE may set; runc, as crun refuses hybrid cgroups
STORAGE = '[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
ENTER = """
mount --make-rprivate /
mount -t tmpfs tmpfs {folder}/etc && mkdir {folder}/etc/upper {folder}/etc/work
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mount -t overlay overlay -o lowerdir={root}/etc:/etc,upperdir={folder}/etc/upper,workdir={folder}/etc/work /etc
exec "$@"
"""


class Podman:
    """One service and its containers; `close` removes them. `docker_host` is its address."""

    def __init__(self, folder: Path, space: Namespace) -> None:
        """Start it in a namespace, with its files in a new folder with a short path."""
        self.folder, self.space = folder, space
        self._packages = unpacked("podman", PODMAN)
        for name in ("etc", "networks", "libpod"):
            (folder / name).mkdir(parents=True)
        settings = {"containers.conf": SETTINGS, "storage.conf": STORAGE}
        for name, text in settings.items():
            (folder / name).write_text(text.format(root=self._packages.root, folder=folder))
        self._environment = {
            **self._packages.environment(),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
        self.socket = folder / "podman.sock"
        self.docker_host = f"unix://{self.socket}"
        self.process: subprocess.Popen[str] | None = None
        self.start()

    def _argv(self, *words: str) -> list[str]:
        enter = ENTER.format(root=self._packages.root, folder=self.folder)
        return ["unshare", "-m", "sh", "-ec", enter, "sh", str(self._packages.program("podman")), *words]

    def start(self) -> None:
        """Start the service; its earlier containers still exist."""
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()
        with (self.folder / "service.log").open("a") as log:
            argv = self._argv("system", "service", "--time", "0", self.docker_host)
            self.process = self.space.popen(
                argv, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        wait_for(self.socket.exists, f"podman's socket ({self.log()})", 30)

    def log(self) -> str:
        """Return the output of the service."""
        return (self.folder / "service.log").read_text()

    def stop(self) -> None:
        """End the service; containers keep running."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(10)
            self.process = None

    def run(self, *words: str, text: str | None = None) -> str:
        """Run a command of podman and return its output."""
        # in the service's mount namespace, if there is one: a container's file system is mounted only there
        argv = self.space.command(self._argv(*words))
        if self.process is not None:
            program = str(self._packages.program("podman"))
            argv = [
                "nsenter",
                f"--mount=/proc/{self.process.pid}/ns/mnt",
                f"--net={self.space.path}",
                "--",
                program,
                *words,
            ]
        done = subprocess.run(argv, env=self._environment, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"podman {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def import_haproxy(self, name: str = IMAGE) -> str:
        """Build an image of HAProxy's program and its libraries; return its name."""
        archive = haproxy_archive(self.folder)
        self.run("import", "--change", "ENV PATH=/usr/sbin:/usr/bin", str(archive), name)
        return name

    def close(self) -> None:
        """Remove all containers, end the service, and remove its remains."""
        with contextlib.suppress(LabError):
            self.run("rm", "--all", "--force", "--time", "0")
        self.stop()
        for pid in self.space.pids():
            with contextlib.suppress(OSError):
                if Path("/proc", str(pid), "comm").read_text().strip() in ("conmon", "haproxy", "podman"):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def haproxy_archive(folder: Path) -> Path:
    """Return a tar file of a root file system with HAProxy, its libraries, and the user 65534 in /etc/passwd."""
    archive = folder / "haproxy.tar"
    if archive.exists():
        return archive
    packages = unpacked("haproxy", HAPROXY)
    program = packages.program("haproxy")
    root = folder / "image"
    for name in ("usr/sbin", "etc", "tmp", "usr/local/etc/haproxy"):
        (root / name).mkdir(parents=True)
    shutil.copy(program, root / "usr/sbin/haproxy")
    listing = subprocess.run(
        ["ldd", str(program)], env=packages.environment(), capture_output=True, text=True, check=True
    ).stdout
    shutil.copy("/bin/rm", root / "usr/sbin/rm")  # most images have one
    listing += run("ldd", "/bin/rm")
    for name, path in re.findall(r"^\s*(?:(\S+) => )?(/\S+) \(", listing, re.MULTILINE):
        target = root / "lib" / name if name else root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (root / "etc/passwd").write_text("root:x:0:0::/:/\nnobody:x:65534:65534::/:/\n")
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (root / "etc/ld.so.conf").write_text("/lib\n")
    run("ldconfig", "-r", str(root))
    run("tar", "-C", str(root), "--owner=0", "--group=0", "-cf", str(archive), ".")
    shutil.rmtree(root)
    return archive
