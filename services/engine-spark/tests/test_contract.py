"""Spark, called over the wire, keeps the contract of the services' engine port; uses conftest's fixture `engine`."""

from odf_testing.engine_contract import EngineContract


class TestEngine(EngineContract):
    """Client, wire and server."""
