"""HTTP/1.1: heads of messages, the server with bounded requests and responses, listeners by address, and the client.

Import `message_head.py`, `http_server.py`, `listeners.py`, `http_client.py`. The content is not here: `api`, `healthz` and
`cloud/controller` have the handlers.
"""
