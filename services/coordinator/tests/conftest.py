"""A coordinator, and manifests for it."""

from pathlib import Path

import pytest

from odf_coordinator.testing import Coordinator


@pytest.fixture
def node(tmp_path: Path) -> Coordinator:
    return Coordinator(home=tmp_path)


@pytest.fixture
def root() -> str:
    return """
kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, ddlSchema: [event_time TIMESTAMP, city STRING]}
      merge: {kind: Append}
"""


@pytest.fixture
def derivative() -> str:
    return """
kind: DatasetSnapshot
version: 1
content:
  name: cities.copy
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: Cities}]
      transform:
        kind: Sql
        engine: spark
        query: SELECT event_time, city FROM cities
"""
