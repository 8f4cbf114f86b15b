"""Provider `edge`: port mappings at the router of a home or branch, by UPnP IGD or NAT-PMP."""
