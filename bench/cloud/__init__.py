"""Addresses for Services of type LoadBalancer: how fast they are assigned and moved, compared with MetalLB."""
