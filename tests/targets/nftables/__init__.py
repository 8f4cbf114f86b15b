"""Tests of the data plane `nftables`: its rule set (pure), the table in the kernel, and packets in namespaces."""
