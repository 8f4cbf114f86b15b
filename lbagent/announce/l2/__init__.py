"""Announces addresses on the link: the state machine of one address, the devices it uses, and the frames sent and received.

`vip_machine.py`, `reach.py`, `placements.py`, `duplicate_probes.py` and `frames.py` are pure; `link_sockets.py` and
`solicited_groups.py` do the I/O. Import the modules. Leases are not here (`announce/leader`); `announcer.py` joins both.
"""
