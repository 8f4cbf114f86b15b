"""Tests for plug-ins of lbagent, to be run by their own packages."""
