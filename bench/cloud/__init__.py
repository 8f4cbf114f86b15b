"""Addresses for Services of type LoadBalancer: how fast they come and move, beside MetalLB."""
