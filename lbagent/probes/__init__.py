"""Probes (tcp, http, https, udp): one request to a server with a deadline; rise and fall of many. The caller is unknown here."""
