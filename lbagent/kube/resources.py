"""The resources that are read from the API, a line each. The server applies the selectors."""

from __future__ import annotations

from typing import NamedTuple

from lbagent.objects.decode.decode_service import HEADLESS, PROXY_NAME


class Resource(NamedTuple):
    """A resource that is listed and watched. `name` is its name in RBAC, kubectl and messages: `services`.

    `optional`: a server may not have it. `guarded`: every cluster has some, and deletions found by a list may wait for a
    confirmation.
    """

    kind: str
    path: str
    name: str
    label_selector: str = ""
    field_selector: str = ""
    optional: bool = False
    guarded: bool = False

    @property
    def query(self) -> dict[str, str]:
        """The selectors in the form of the API."""
        selectors = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {key: text for key, text in selectors.items() if text}


NODES = "/api/v1/nodes"
_PLURALS = {"Service": "services", "Pod": "pods"}  # kinds of core/v1 with a namespace, of which single objects are read


def collection_of(kind: str, namespace: str) -> str:
    """Return the path of the objects of a kind in a namespace; '' for any other kind."""
    return f"/api/v1/namespaces/{namespace}/{_PLURALS[kind]}" if kind in _PLURALS and namespace else ""


def resources(node_name: str) -> tuple[Resource, ...]:
    """Return the resources that an agent of this node reads. Source: kube-proxy's selectors (service-proxy.md)."""
    return (
        Resource("Service", "/api/v1/services", "services", f"!{PROXY_NAME}", guarded=True),
        Resource(
            "EndpointSlice",
            "/apis/discovery.k8s.io/v1/endpointslices",
            "endpointslices.discovery.k8s.io",
            f"!{PROXY_NAME},!{HEADLESS}",
            guarded=True,
        ),
        Resource("Node", NODES, "nodes", field_selector=f"metadata.name={node_name}"),
        Resource("Pod", "/api/v1/pods", "pods", field_selector=f"spec.nodeName={node_name}"),
        Resource(
            "ServiceCIDR",
            "/apis/networking.k8s.io/v1/servicecidrs",
            "servicecidrs.networking.k8s.io",
            optional=True,  # from 1.33 on
        ),
        Resource("BackendState", "/apis/lbagent.io/v1alpha1/backendstates", "backendstates.lbagent.io", optional=True),
        Resource(
            "LocalRedirectPolicy",
            "/apis/lbagent.io/v1alpha1/localredirectpolicies",
            "localredirectpolicies.lbagent.io",
            optional=True,
        ),
        Resource(
            "CiliumLocalRedirectPolicy",
            "/apis/cilium.io/v2/ciliumlocalredirectpolicies",
            "ciliumlocalredirectpolicies.cilium.io",
            optional=True,
        ),
    )
