"""Probes: one question to a server with a deadline, and what a row of answers makes of it (rise, fall). No word of who asked."""
