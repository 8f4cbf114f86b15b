"""lbagent: a service load balancer agent. Kernel programs do the work, a pure model decides."""

__version__ = "0.1.0"
