"""Address pools for Services of type LoadBalancer: the file that defines them, and which Service gets which address (pure).

Import `read_pools.py` for the file, `allocate.py` and `address_request.py` for the allocation. Not here: writing a status
(`cloud`), and announcing an address (`announce`).
"""
