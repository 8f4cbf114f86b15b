"""Probes (tcp, http, https, udp): one question to a server with a deadline; rise and fall of many. No word of who asked."""
