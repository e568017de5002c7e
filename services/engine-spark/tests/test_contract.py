"""Spark behind the wire keeps the contract of the port that the services see; fixture `engine` of conftest."""

from odf_testing.engine_contract import EngineContract


class TestEngine(EngineContract):
    """Client, wire and server."""
