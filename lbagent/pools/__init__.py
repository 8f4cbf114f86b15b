"""Pools of addresses for Services of type LoadBalancer: the file that names them, and who gets which address (pure)."""
