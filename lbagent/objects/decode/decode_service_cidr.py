"""Read ServiceCIDRs (networking.k8s.io): the ranges of a cluster's ClusterIPs. Source: KEP-1880."""

from __future__ import annotations

from lbagent.model.service import CIDR
from lbagent.objects.decode import wire
from lbagent.objects.decode.report import Report, present
from lbagent.objects.decode.wire import ServiceCIDRSpec
from lbagent.objects.records import ServiceCIDR


def decode_service_cidr(raw: wire.ServiceCIDR, _namespace: str, name: str, report: Report) -> ServiceCIDR:
    """Return the ServiceCIDR; one range of each family at most, as the API has it."""
    found: list[CIDR] = []
    for index, text in present((raw.spec or ServiceCIDRSpec()).cidrs or []):
        try:
            found.append(CIDR.parse(text))
        except ValueError as error:
            report.error(("spec", "cidrs", index), str(error), "the range is left out")
    return ServiceCIDR(name, report.origin, tuple(found))
