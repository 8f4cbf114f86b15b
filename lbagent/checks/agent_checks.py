"""The agent's work beside the maps: ports, other data planes, settings, its state folder."""

from __future__ import annotations

from collections.abc import Iterator

from lbagent.checks.running_agent import RunningAgent
from lbagent.kernel.private_folder import unwritable
from lbagent.model.check import Check, Result, Severity


def port_not_open(agent: RunningAgent) -> Iterator[Result]:
    """Report each port that could not be opened: /healthz, the metrics, health check node ports."""
    servers = agent.node_servers
    for port, why, of_service in servers.problems() if servers else ():
        yield Result(port, {"port": port, "why": why}, severity=Severity.DEGRADED if of_service else None)


def target_failed(agent: RunningAgent) -> Iterator[Result]:
    """Report each data plane that does not match the State; single frontends of the maps have their own results."""
    for runner in agent.loop.runners:
        problem = runner.whole_error if runner.target in agent.translating else runner.problem
        if problem:
            yield Result(runner.target.name, {"target": runner.target.name, "problem": problem})


def setting_not_in_force(agent: RunningAgent) -> Iterator[Result]:
    """Report each setting that could not be applied."""
    for subject, problem in agent.problems.items():
        yield Result(subject, {"problem": problem})


def state_dir_unusable(agent: RunningAgent) -> Iterator[Result]:
    """Check whether files can be written below the state folder."""
    folder = agent.config.state_dir
    if reason := unwritable(folder):
        yield Result(folder, {"folder": folder, "reason": reason})


def copies_not_written(agent: RunningAgent) -> Iterator[Result]:
    """Report the folder whose copies of good manifests cannot be updated, and the file of frontend owners."""
    from lbagent.sources.folder.source import FolderSource

    owners = agent.owners
    if owners and owners.failure:
        yield Result(owners.path, {"problem": owners.failure})
    for source in agent.sources:
        if isinstance(source, FolderSource) and (problem := source.copies_failure()):
            yield Result(source.copies_folder, {"problem": problem})


PORT_CHECKS = (
    Check(
        "port-not-open",
        "the ports of `/healthz`, the metrics and health check node ports",
        port_not_open,
        "{port} cannot be opened: {why}",
        "stop the process that listens there (kube-proxy uses the same ports), or choose another address; the agent retries",
    ),
)
AGENT_CHECKS = (
    Check(
        "target-failed",
        "whether each data plane has the State",
        target_failed,
        "target {target}: {problem}",
        "what was written before stays in force; the agent retries",
    ),
    Check(
        "setting-not-in-force",
        "whether the settings are in force",
        setting_not_in_force,
        "{problem}",
        "fix the setting, and send SIGHUP",
    ),
    Check(
        "state-dir-unusable",
        "`--state-dir`",
        state_dir_unusable,
        "--state-dir {folder} {reason}: set-state is refused, and no copies of good manifests are kept",
        "make it a folder that the agent may write to",
    ),
    Check(
        "copies-not-written",
        "the copies of good manifests in `--state-dir`",
        copies_not_written,
        "{problem}",
        "make room on that file system, or make it writable; the agent retries",
    ),
)
