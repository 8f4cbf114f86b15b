"""Who leads for an address: Leases, and the order of nodes that follows from their names; and who led before."""
