"""HTTPS servers for the tests of probes."""

from tests.lab.https_fixtures import alone, certificate, server

__all__ = ["alone", "certificate", "server"]
