"""Built-in providers `pool`, `baremetal`, `fake` and `none`; `cloud/providers.py` lists them. Provider `edge` is in `cloud/edge`.

`address_book.py` (pure) and `pool_balancers.py` give addresses of pools to Services. Providers do not import one another; only
`cloud/providers.py` imports from here.
"""
