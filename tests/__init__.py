"""Tests mirror the package: tests/model/test_flags.py belongs to lbagent/model/flags.py."""
