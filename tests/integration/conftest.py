"""One embedded node for all integration tests: the real broker, Redis, services and Spark."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import Story

EmbeddedNode.forks_commands = True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("integration")


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    """A running node, whose logs show which part is busy.

    It ends with the tests of this folder, so that it takes no time from others, and leaves no process.
    """
    settings = {"ODF_FETCH_NETWORKS": "127.0.0.0/8", "ODF_LOG_LEVEL": "debug"}
    made = EmbeddedNode(tmp_path_factory.mktemp("node"), settings)
    made.up()
    yield made
    made.down()


@pytest.fixture
def story(node: EmbeddedNode) -> Story:
    """The node, and helpers of stories."""
    return Story(node)
