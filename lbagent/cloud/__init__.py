"""Addresses for Services of type LoadBalancer: what providers would give, and to whom."""
