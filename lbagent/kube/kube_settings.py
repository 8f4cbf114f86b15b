"""The settings of the Kubernetes source, and the check of a kubeconfig before anything is loaded."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from msgspec import Struct

from lbagent.errors import ConfigError
from lbagent.kernel.regular_file import read_regular
from lbagent.value_errors import wrong_type

MANIFESTS_NAMESPACE = "kube-system"  # of the agents in deploy/kubernetes
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a folder
SERVER_VARIABLES = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")


class KubeTiming(Struct, frozen=True, kw_only=True):
    """Seconds, and objects a page. Source: client-go's reflector; a silent watch gets a bookmark each minute."""

    first_pause_s: float = 0.8
    max_pause_s: float = 30.0
    healthy_s: float = 60.0  # after this time without a failure, pauses restart at the first
    silence_s: float = 150.0  # a watch without data for this time counts as dead
    list_silence_s: float = 60.0  # the same for a list
    alive_s: float = 1.0  # a watch that lasts this time is no failure, even without data
    standing_s: float = 10.0  # a failure that lasts this time is shown
    first_list_s: float = 10.0  # an agent that continues from its maps waits this time for the first lists
    optional_s: float = 10.0  # wait for optional resources after all others were listed
    wake_spread_s: float = (
        3.0  # reflectors of all nodes whose pauses end by the success of another request restart within this time
    )
    watch_s: tuple[int, int] = (300, 600)  # the requested length of a watch is in this range
    absent_s: float = 300.0  # until a resource that is not installed is requested again
    page: int = 500
    catch_up_s: float = 5.0  # a change that a list has and the watch has not sent after this time was missed
    reread_s: float = 30.0  # for all lists of a comparison


class KubeSettings(Struct, frozen=True, kw_only=True):
    """The address of the API server, the name of this node, and the folder kept over restarts.

    `kubeconfig` is '' for the service account of a Pod. `max_delete_ratio` is in percent.
    """

    kubeconfig: str = ""
    node_name: str
    state_dir: str = ""
    max_delete_ratio: int = 50
    timing: KubeTiming = KubeTiming()

    @property
    def server_place(self) -> str:
        """The address of the API server of a Pod and its origin, in brackets; '' with a kubeconfig.

        It is a Service unless it was overridden, and before the first agent is ready no program may serve it.
        """
        if self.kubeconfig:
            return ""
        host, port = (os.environ.get(name, "") for name in SERVER_VARIABLES)
        return f" ({host}:{port} by KUBERNETES_SERVICE_HOST; where that is a Service which no proxy serves yet, name an address)"

    def check(self) -> None:
        """Check the settings without a request to the server. Raises ConfigError with the file or variable."""
        if self.kubeconfig:
            check_kubeconfig(self.kubeconfig)
        else:
            check_in_cluster()


class _User(Struct, rename="kebab"):
    client_certificate: str | None = None
    client_certificate_data: Any = None
    client_key: str | None = None
    client_key_data: Any = None
    token: Any = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    exec: Any = None
    auth_provider: Any = None


class _NamedUser(Struct):
    name: str
    user: _User | None = None


class _Cluster(Struct, rename="kebab"):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: Any = None


class _NamedCluster(Struct):
    name: str
    cluster: _Cluster


class _Context(Struct):
    cluster: str
    user: str = ""


class _NamedContext(Struct):
    name: str
    context: _Context


class _Kubeconfig(Struct):
    current_context: str | None = msgspec.field(name="current-context", default=None)
    contexts: list[_NamedContext] | None = None
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None


def check_kubeconfig(path: str) -> None:
    """Follow a kubeconfig from its current context to a server. Raises ConfigError."""
    config = _read(path)
    if not config.current_context:
        raise ConfigError(f"--kubeconfig {path}: current-context is missing; nothing was loaded")
    contexts = {each.name: each.context for each in config.contexts or ()}
    context = contexts.get(config.current_context)
    if context is None:
        found = ", ".join(sorted(contexts)) or "none"
        raise ConfigError(
            f"--kubeconfig {path}: current-context {config.current_context!r} is not among its contexts ({found})"
        )
    where = f"--kubeconfig {path}: context {config.current_context!r}"
    clusters = {each.name: each.cluster for each in config.clusters or ()}
    if context.cluster not in clusters:
        raise ConfigError(f"{where} names the cluster {context.cluster!r}, which is not in the file")
    if not clusters[context.cluster].server.startswith(("https://", "http://")):
        raise ConfigError(
            f"{where}: the server of cluster {context.cluster!r} is not a URL like https://192.0.2.1:6443"
        )
    users = {each.name: each.user for each in config.users or ()}
    if context.user and context.user not in users:
        raise ConfigError(f"{where} names the user {context.user!r}, which is not in the file")
    _check_files(path, context, clusters[context.cluster], users.get(context.user) or _User())


def _check_files(path: str, context: _Context, cluster: _Cluster, user: _User) -> None:
    """Reject a file of the cluster or the user that cannot be read.

    Not read, and not checked: certificates for a server without TLS, files whose content is in the kubeconfig, and files of a
    user whose credentials come from a command or a provider.
    """
    of_cluster, of_user = f"cluster {context.cluster!r}", f"user {context.user!r}"
    has_tls, has_files = cluster.server.startswith("https://"), not (user.exec or user.auth_provider)
    for is_used, owner, field, name, data in (
        (
            has_tls,
            of_cluster,
            "certificate-authority",
            cluster.certificate_authority,
            cluster.certificate_authority_data,
        ),
        (has_tls and has_files, of_user, "client-certificate", user.client_certificate, user.client_certificate_data),
        (has_tls and has_files, of_user, "client-key", user.client_key, user.client_key_data),
        (has_files, of_user, "tokenFile", user.token_file, user.token),
    ):
        if not is_used or not name or data:
            continue
        file = os.path.join(os.path.dirname(os.path.abspath(path)), name)  # Kubernetes: relative to the kubeconfig
        try:
            with open(file, "rb") as stream:
                problem = "" if stream.read(1) else "the file is empty"
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            raise ConfigError(f"--kubeconfig {path}: {field} of {owner}: {file}: {problem}; nothing was loaded")


def _read(path: str) -> _Kubeconfig:
    from lbagent.textfile import yamldoc

    try:
        text = read_regular(path).decode()
        raw: Any = next((value for _, value in yamldoc.load(text)), None)
    except OSError as error:
        raise ConfigError(f"--kubeconfig {path}: {error.strerror}; nothing was loaded") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--kubeconfig {path}: not YAML: it is not UTF-8; nothing was loaded") from None
    except yamldoc.YamlError as error:
        raise ConfigError(f"--kubeconfig {path}:{error.line}: not YAML: {error.problem}; nothing was loaded") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"--kubeconfig {path}: {wrong_type(raw, 'object')}")
    try:
        return msgspec.convert(raw, _Kubeconfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--kubeconfig {path}: {error}") from None


def check_in_cluster() -> None:
    """Read the server's address and the token that Kubernetes gives to a Pod. Raises ConfigError."""
    for name in SERVER_VARIABLES:
        if not os.environ.get(name):
            raise ConfigError(f"--in-cluster: {name} is not set; outside a Pod use --kubeconfig FILE")
    for name in ("token", "ca.crt"):
        path = os.path.join(TOKEN_FOLDER, name)
        try:
            is_empty = not read_regular(path, 1)
        except OSError as error:
            raise ConfigError(f"--in-cluster: {path}: {error.strerror}; is a service account token mounted?") from None
        if is_empty:
            raise ConfigError(f"--in-cluster: {path} is empty")


def own_namespace() -> str:
    """Return the namespace of this Pod, that of the manifests outside of a Pod."""
    try:
        with open(os.path.join(TOKEN_FOLDER, "namespace"), encoding="ascii") as stream:
            return stream.read(253).strip() or MANIFESTS_NAMESPACE
    except (OSError, UnicodeDecodeError):
        return MANIFESTS_NAMESPACE
