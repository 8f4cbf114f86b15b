"""The protocols of routers: SSDP, device descriptions and SOAP (UPnP IGD), NAT-PMP.

Import `port_mapping.py` for the `Gateway` interface and its errors. Services are not here; answers are untrusted and bounded.
"""
