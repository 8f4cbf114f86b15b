"""The settings of `lbagent cloud run`."""

from __future__ import annotations

from msgspec import Struct

from lbagent.cloud.controller.cluster_cidrs import Network, parse_cluster_cidrs
from lbagent.cloud.controller.controller_names import SWITCHES, check_switches, is_switched_on
from lbagent.errors import ConfigError
from lbagent.kube.kube_settings import KubeSettings, KubeTiming
from lbagent.model.address import L3n4Addr

MIN_LEASE_S, MAX_LEASE_S = 3.0, 600.0
MIN_PERIOD_S = 0.1


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
    lease_name: str = "lbagent-cloud"
    lease_duration_s: float = 15.0
    concurrent_syncs: int = 4
    retry_base_s: float = 5.0
    retry_max_s: float = 300.0
    controllers: str = SWITCHES
    cluster_cidr: str = ""
    node_addresses_period_s: float = 300.0
    node_monitor_period_s: float = 5.0
    route_period_s: float = 10.0
    metrics_address: str = ""
    health_address: str = ""
    log_format: str = "text"
    timing: KubeTiming = KubeTiming()

    @property
    def kube(self) -> KubeSettings:
        """The settings of the API server's client."""
        return KubeSettings(kubeconfig=self.kubeconfig, node_name=self.node_name, timing=self.timing)

    @property
    def cluster_cidrs(self) -> tuple[Network, ...]:
        """The ranges of the cluster's pods. Raises ConfigError."""
        try:
            return parse_cluster_cidrs(self.cluster_cidr)
        except ValueError as error:
            raise ConfigError(f"--cluster-cidr: {error}") from None

    def runs(self, controller: str) -> bool:
        """Return whether --controllers enables a controller."""
        return is_switched_on(self.controllers, controller)

    def check(self) -> None:
        """Check the settings without a request to the server. Raises ConfigError."""
        self.kube.check()
        if not MIN_LEASE_S <= self.lease_duration_s <= MAX_LEASE_S:
            raise ConfigError(
                f"--lease-duration: {self.lease_duration_s:g}s is not in {MIN_LEASE_S:g}s-{MAX_LEASE_S:g}s"
            )
        if not 0 < self.retry_base_s <= self.retry_max_s:
            raise ConfigError("--retry-base must be more than 0, and --retry-max not less than it")
        check_switches(self.controllers)
        _ = self.cluster_cidrs
        periods = {
            "--node-status-update-frequency": self.node_addresses_period_s,
            "--node-monitor-period": self.node_monitor_period_s,
            "--route-reconciliation-period": self.route_period_s,
        }
        for flag, seconds in periods.items():
            if seconds < MIN_PERIOD_S:
                raise ConfigError(f"{flag}: {seconds:g}s is less than {MIN_PERIOD_S:g}s")
        for flag, text in (("--metrics-address", self.metrics_address), ("--health-address", self.health_address)):
            if text:
                listen_address(flag, text)


def listen_address(flag: str, text: str) -> L3n4Addr:
    """Return the address of a flag. Raises ConfigError."""
    try:
        return L3n4Addr.parse(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from None
