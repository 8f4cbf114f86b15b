"""Address pools for Services of type LoadBalancer: the file that defines them, and which Service gets which address (pure).

Import `read_pools.py` for the file, `allocate.py` and `address_request.py` for the allocation. Writing a status is not here
(`cloud`), nor announcing an address (`announce`).
"""
