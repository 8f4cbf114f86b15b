"""HTTPS servers for the tests of native mode."""

from tests.lab.https_fixtures import alone, certificate, server

__all__ = ["alone", "certificate", "server"]
