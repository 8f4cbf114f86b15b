"""The data plane `none`: it balances no packets. Sources, resolve, API, health ports and metrics run without root and BPF."""
