"""nftables as the data plane, compared with the real kube-proxy in nftables mode."""
