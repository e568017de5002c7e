"""The engine in memory keeps the contract that Spark keeps."""

import pytest
from odf_testing.engine_contract import EngineContract
from odf_testing.passing_engine import PassingEngine


class TestPassingEngine(EngineContract):
    @pytest.fixture
    def engine(self) -> PassingEngine:
        return PassingEngine()
