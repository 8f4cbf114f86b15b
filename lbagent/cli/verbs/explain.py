"""`lbagent explain`: what would happen to a packet, step by step. Nothing is sent, and nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from lbagent.api.client import AgentClient
from lbagent.cli.options import bpffs_option, form_option, socket_option, state_dir_option
from lbagent.cli.output import printable
from lbagent.errors import AgentUnreachable, ConfigError

EXPLAIN_TIMEOUT_S = 60.0  # the first question loads the programs
BATCH = 256  # packets of a capture in one request
Answer = dict[str, Any]  # Explanation (targets/explanation.py)


@click.command()
@click.argument("source", metavar="SRC[:PORT]", default="")
@click.argument("destination", metavar="DST[:PORT][/PROTO]", default="")
@click.option(
    "--flags", default="S", show_default=True, metavar="LETTERS", help="TCP flags of the packet: letters of FSRPAU."
)
@click.option("--length", default=0, metavar="BYTES", help="Bytes of the whole frame (default: no payload).")
@click.option(
    "--device", default="", metavar="NAME", help="Device by which it comes (default: the one that routes SRC)."
)
@click.option(
    "--hook",
    type=click.Choice(["xdp", "tc_ingress", "tc_egress"]),
    default=None,
    help="Hook at which it comes (default: the device's; tc_egress for a packet of this node itself).",
)
@click.option(
    "--expect", default="", metavar="WORD", help="Fail unless this is the verdict, the reason or the backend."
)
@click.option(
    "-f",
    "--manifests",
    "folder",
    default="",
    metavar="DIR",
    help="Answer under these manifests instead of those in force.",
)
@click.option(
    "--pcap",
    default="",
    metavar="FILE|-",
    help="Explain each frame of a capture, one line of JSON each; - reads stdin.",
)
@click.option(
    "--from-node", "node", default="", metavar="NODE", help="Ask the agent of this node of the cluster, by kubectl."
)
@click.option("--context", default="", metavar="NAME", help="With --from-node: context of kubectl's configuration.")
@click.option("--kubeconfig", default="", metavar="FILE", help="With --from-node: kubectl's configuration.")
@click.option(
    "-n",
    "--namespace",
    default="",
    metavar="NAME",
    help="With --from-node: namespace of the agents' Pods (default: the one that has them).",
)
@bpffs_option
@socket_option
@state_dir_option
@form_option("text", "json")
def explain(
    *,
    source: str,
    destination: str,
    flags: str,
    length: int,
    device: str,
    hook: str | None,
    expect: str,
    folder: str,
    pcap: str,
    node: str,
    context: str,
    kubeconfig: str,
    namespace: str,
    bpffs: str,
    socket: str,
    state_dir: str,
    form: str,
) -> int:
    """Show what happens to a packet from SRC to DST, and why.

    The programs themselves answer, over the maps in force: a copy of them runs that stores nothing. PROTO is TCP, UDP or ICMP (a
    ping, without ports). Where no agent answers, this command loads the copy itself, over the maps under --bpffs; it needs root
    then, and has no -f.

    Verdicts: forward (to a backend or a client), local (translated, then handed to this node's stack), answer (a RST or an ICMP
    error goes back), drop, pass (untouched).

    Exit code 0: explained. 1: --expect is another. 2: wrong usage, addresses of two families, no such file. 3: no such device.
    5: no agent answers, and nothing is pinned, or -f is given. With --from-node 3: no agent on that node, 5: its Pod does not run.
    """
    if node:
        return _explain_there(node, click.get_current_context().params)
    if context or kubeconfig or namespace:
        raise ConfigError("--context, --kubeconfig and --namespace go with --from-node")
    request: Answer = {"device": device, "hook": hook or ""}
    if folder:
        from lbagent.cli.manifest_texts import manifest_texts

        request["manifests"] = manifest_texts(folder)
    asked = _Asked(AgentClient(socket), bpffs, state_dir)
    if pcap:
        if source or destination:
            raise ConfigError("give either SRC and DST or --pcap")
        return _explain_capture(asked, request, pcap, expect)
    if not (source and destination):
        raise ConfigError("give SRC:PORT and DST:PORT, SRC and DST/ICMP, or --pcap FILE")
    address, _, protocol = destination.partition("/")
    packet = {
        "source": source, "destination": address, "protocol": protocol or "tcp", "flags": flags, "length": length,
    }  # fmt: skip
    (answer,) = asked.explain({**request, "packets": [packet]})
    click.echo(json.dumps(answer, indent=2) if form == "json" else "\n".join(map(printable, text_lines(answer))))
    return _checked(answer, expect)


def _explain_there(node: str, given: dict[str, Any]) -> int:
    """Ask in the agent's Pod of a node: files of this machine go there by stdin."""
    from lbagent.cli import kubectl_plugin

    words, stdin = ["explain", *filter(None, (given["source"], given["destination"]))], None
    if given["folder"] and given["pcap"]:
        raise ConfigError("--from-node takes either -f or --pcap")
    if given["folder"]:
        from lbagent.cli.manifest_texts import manifest_texts

        stdin = "\n---\n".join(each["text"] for each in manifest_texts(given["folder"])).encode()
        words += ["-f", "-"]
    if given["pcap"]:
        from lbagent.cli.capture_file import whole_file

        stdin = whole_file(given["pcap"])
        words += ["--pcap", "-"]
    options = {"flags": given["flags"], "length": given["length"], "device": given["device"], "hook": given["hook"]}
    options |= {"expect": given["expect"], "output": given["form"]}
    words += [f"--{name}={value}" for name, value in options.items() if value]
    try:
        options_of_kubectl = kubectl_plugin.global_options(given["context"], given["kubeconfig"])
        kubectl = kubectl_plugin.Kubectl(options_of_kubectl, given["namespace"])
        return kubectl_plugin.run_on_node(kubectl, node, words, stdin)
    except kubectl_plugin.PluginError as error:
        click.echo(f"error: {error}", err=True)
        return error.code


class _Asked:
    """Who answers: the agent, or where there is none this process, with the programs over the pinned maps."""

    def __init__(self, client: AgentClient, bpffs: str, state_dir: str) -> None:
        self._client, self._bpffs, self._state_dir = client, bpffs, state_dir
        self._left: Callable[[Answer], list[Answer]] | None = None

    def explain(self, request: Answer) -> list[Answer]:
        """Return what would happen to packets. Raises LbError."""
        if self._left is None:
            try:
                answers: list[Answer] = self._client.explain(request, EXPLAIN_TIMEOUT_S)
            except AgentUnreachable as error:
                self._left = self._open_left(request, error)
            else:
                return answers
        return self._left(request)

    def _open_left(self, request: Answer, error: AgentUnreachable) -> Callable[[Answer], list[Answer]]:
        """Return what answers without the agent. Raises `error` where nothing is pinned, LbError."""
        import msgspec

        from lbagent.cli.service_names import ServiceNames
        from lbagent.config import Config
        from lbagent.targets.explanation import ExplainRequest
        from lbagent.targets.offline_planes import left_explainer

        if "manifests" in request:
            raise error
        names = ServiceNames.read(self._client.path, self._state_dir)
        try:
            left = click.get_current_context().with_resource(left_explainer(Config(bpffs=self._bpffs), names.of))
        except AgentUnreachable:
            raise error from None
        click.echo("no agent answers: the programs and maps that it has left are asked", err=True)

        def explain(request: Answer) -> list[Answer]:
            answers: list[Answer] = msgspec.to_builtins(left(msgspec.convert(request, ExplainRequest)))
            return answers

        return explain


def _checked(answer: Answer, expect: str) -> int:
    """Return the exit code: whether the answer is the expected one."""
    found = [str(answer[key]) for key in ("verdict", "reason", "backend") if answer[key]]
    if not expect or expect in found:
        return 0
    click.echo(f"expected {expect}, got {', '.join(found)}", err=True)
    return 1


def _explain_capture(asked: _Asked, request: Answer, path: str, expect: str) -> int:
    from lbagent.cli.capture_file import frames

    code, batch = 0, list[dict[str, str]]()

    def send() -> int:
        answers = asked.explain({**request, "packets": batch}) if batch else []
        for answer in answers:
            click.echo(json.dumps(answer, separators=(",", ":")))
        return max((_checked(answer, expect) for answer in answers), default=0)

    for frame in frames(path):
        batch.append({"frame": frame.hex()})
        if len(batch) == BATCH:
            code = max(code, send())
            batch = []
    return max(code, send())


# --- text ---

_VERDICTS = {
    "forward": "forwarded",
    "local": "handed to this node's stack",
    "answer": "answered",
    "drop": "dropped",
    "pass": "passed untouched",
}


def text_lines(answer: Answer) -> list[str]:
    """Return the answer for people: the packet, a line for each step, the verdict, what to do."""
    packet = answer["packet"]
    words = [packet["protocol"].upper(), packet["flags"], f"{packet['source']} > {packet['destination']}"]
    at = f"at {packet['device']}" + (f" ({packet['hook']})" if packet["hook"] else "")
    lines = [" ".join(word for word in words if word) + f", {packet['length']} bytes, {at}"]
    width = max((len(step["step"]) for step in answer["steps"]), default=0)
    lines += [f"  {step['step']:{width}}  {step['result']}: {step['text']}" for step in answer["steps"]]
    lines.append(f"{_VERDICTS[answer['verdict']]}{_why(answer)}{_where(answer)}")
    if answer["advice"]:
        lines.append(f"  {answer['advice']}")
    return lines


def _why(answer: Answer) -> str:
    return f" ({answer['reason']})" if answer["reason"] else ""


def _where(answer: Answer) -> str:
    out = answer["output"]
    if out is None:
        return ""
    return f": {out['source']} > {out['destination']}" + (f" by {out['device']}" if out["device"] else "")
