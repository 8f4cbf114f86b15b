"""The HTTP/1.1 server: bounded requests, responses, and listeners by address.

Import `http_server.py` and `listeners.py`. What is served is not here: `api`, `healthz` and `cloud/controller` give handlers.
"""
