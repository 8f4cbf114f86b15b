"""Announces addresses by BGP: writes BIRD's configuration, runs BIRD, reads the state of its sessions.

Import `bgp_routes.py`, the announcer's door. Nothing here decides which addresses are announced, and nothing imports the announcer.
"""
