"""Announcing addresses of Services on the network of this node: ARP and NDP, one leader an address; BGP is told which."""
