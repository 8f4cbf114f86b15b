"""The tests that every provider must pass: `pytest examples/provider`."""

from __future__ import annotations

from namespaces_provider import NamespacesProvider

from lbagent.cloud.provider import CloudProvider
from lbagent.testing.provider import ProviderSuite


class TestNamespaces(ProviderSuite):
    def make_provider(self) -> CloudProvider:
        return NamespacesProvider("shop: 192.0.2.10")
