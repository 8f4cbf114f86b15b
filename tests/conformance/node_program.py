"""A program on a node of a cluster: ended, and restarted with the same or other arguments."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.node_cluster import NodeCluster
from tests.lab.netns import LabError
from tests.lab.topology import ROOT

FIND = """
for each in /proc/[0-9]*; do
  [ "$(cat "$each/comm" 2>/dev/null)" = "$1" ] && echo "${each#/proc/}" && exit
done
exit 1
"""


def replaced(argv: Sequence[str], flag: str, value: str) -> list[str]:
    """Return argv with another value of a flag (`--flag VALUE` or `--flag=VALUE`); LabError when it has none."""
    out = list(argv)
    for at, word in enumerate(out):
        if word == flag and at + 1 < len(out):
            out[at + 1] = value
            return out
        if word.startswith(f"{flag}="):
            out[at] = f"{flag}={value}"
            return out
    raise LabError(f"{argv[0]} was started without {flag}: {' '.join(argv)}")


class NodeProgram:
    """The first process with a name on a node, with its arguments and environment."""

    def __init__(self, cluster: NodeCluster, node: str, name: str, log: Path) -> None:
        """Raise LabError when none runs."""
        self.cluster, self.node, self.name, self.log = cluster, node, name, log
        self.argv, self.environment = self._words("cmdline"), self._words("environ")

    def _words(self, file: str) -> list[str]:
        text = self.cluster.must_run_on_node(self.node, ["cat", f"/proc/{self.pid()}/{file}"])
        return text.split("\0")[:-1]

    def pid(self) -> str:
        """Return its process id in the node's namespace; LabError if none runs."""
        done = self.cluster.run_on_node(self.node, ["sh", "-c", FIND, "sh", self.name])
        if done.returncode:
            raise LabError(f"{self.node}: no process {self.name} runs {done.stderr.strip()}")
        return done.stdout.strip()

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        pid = self.pid()
        self.cluster.must_run_on_node(
            self.node, ["sh", "-c", f"kill -9 {pid}; while kill -0 {pid} 2>/dev/null; do sleep 0.05; done"]
        )

    def start(self, argv: Sequence[str] = ()) -> None:
        """Start it, by default with the same arguments; it outlives this process."""
        words = ["env", "-i", *self.environment, *(argv or self.argv)]
        with self.log.open("ab") as log:
            subprocess.Popen(
                self.cluster.on_node(self.node, words), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=ROOT, start_new_session=True,
            )  # fmt: skip
