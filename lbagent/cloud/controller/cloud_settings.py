"""What can be set of `lbagent cloud run`."""

from __future__ import annotations

from msgspec import Struct

from lbagent.errors import ConfigError
from lbagent.model.address import L3n4Addr
from lbagent.sources.kube.kube_settings import KubeSettings, KubeTiming

MIN_LEASE_S, MAX_LEASE_S = 3.0, 600.0


class CloudSettings(Struct, frozen=True, kw_only=True):
    """The flags; times are seconds, addresses texts, '' for none."""

    provider: str
    config: str = ""
    kubeconfig: str = ""
    cluster_name: str = "kubernetes"
    node_name: str = ""
    lb_class: str = ""
    namespace: str = "kube-system"
    leader_elect: bool = True
    lease_duration_s: float = 15.0
    concurrent_syncs: int = 4
    retry_base_s: float = 5.0
    retry_max_s: float = 300.0
    metrics_address: str = ""
    health_address: str = ""
    timing: KubeTiming = KubeTiming()

    @property
    def kube(self) -> KubeSettings:
        """The settings of the API server's client."""
        return KubeSettings(kubeconfig=self.kubeconfig, node_name=self.node_name, timing=self.timing)

    def check(self) -> None:
        """Refuse what can be seen without asking the server. Raises ConfigError."""
        self.kube.check()
        if not MIN_LEASE_S <= self.lease_duration_s <= MAX_LEASE_S:
            raise ConfigError(
                f"--lease-duration: {self.lease_duration_s:g}s is not in {MIN_LEASE_S:g}s-{MAX_LEASE_S:g}s"
            )
        if not 0 < self.retry_base_s <= self.retry_max_s:
            raise ConfigError("--retry-base is more than nothing, and --retry-max is not less")
        for flag, text in (("--metrics-address", self.metrics_address), ("--health-address", self.health_address)):
            if text:
                listen_address(flag, text)


def listen_address(flag: str, text: str) -> L3n4Addr:
    """Return the address of a flag. Raises ConfigError."""
    try:
        return L3n4Addr.parse(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from None
