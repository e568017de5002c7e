"""An impossible polling source is refused with its place; a valid one is polled by a pull."""

import pytest
from odf_testing.coordinator import Coordinator
from odf_testing.manifests import POLLING

from odf_common.errors import InvalidInput, Unavailable
from odf_coordinator.operations.pull import PullProgress


@pytest.fixture
def polled(node: Coordinator, root: str) -> str:
    """Return the manifest of `cities`, which has a polling source."""
    text = root.split("    - kind", maxsplit=1)[0] + POLLING.removeprefix("\n")
    node.add(text)
    return text


@pytest.mark.parametrize(
    ("fetch", "where", "why"),
    [
        ('{kind: Url, url: "gopher://example.org"}', "fetch.url", "not from 'gopher'"),
        ("{kind: FilesGlob, path: data/*.csv}", "fetch.path", "expected an absolute path"),
        (
            "{kind: Mqtt, host: h, port: 1, topics: [{path: a}]}\n      prepare: [{kind: Pipe, command: [cat]}]",
            "prepare",
            "messages have no prepare steps",
        ),
        ("{kind: EthereumLogs, chainId: 1}", "fetch", "does not fetch from EthereumLogs"),
    ],
)
def test_a_source_from_which_nothing_can_be_fetched_is_refused(  # noqa: PLR0917
    node: Coordinator, root: str, polled: str, fetch: str, where: str, why: str
) -> None:
    assert node.add(polled)[0].outcome == "unchanged"
    text = polled.replace('{kind: Url, url: "http://example.org"}', fetch)
    with pytest.raises(
        InvalidInput, match=rf"^m0\.yaml:\S+ cities: content\.metadata\[0\]\.{where}: .*{why}"
    ):
        node.add(text, replace=True)


@pytest.mark.parametrize(
    "fetch",
    [
        "{kind: Url, url: 'ftp://example.org/a'}",
        "{kind: Mqtt, host: example.org, port: 1883, topics: [{path: a}]}",
        "{kind: Container, image: example/a}",
    ],
)
def test_every_kind_that_is_fetched_is_accepted(node: Coordinator, polled: str, fetch: str) -> None:
    text = polled.replace('{kind: Url, url: "http://example.org"}', fetch)
    assert node.add(text, replace=True)[0].outcome == "replaced"


def test_a_pull_polls_and_a_failure_counts_what_was_committed_before(node: Coordinator, polled: str) -> None:
    del polled

    def pull() -> list[PullProgress]:
        return [*node.puller.pull(["cities"], is_all=False, is_recursive=False, is_wanted=lambda: True)]

    _, step, last = pull()
    assert step.progress is not None
    assert (step.progress.stage, last.state) == ("fetching", "up-to-date")
    assert node.ingest.polled == [node.find("cities").id]
    node.ingest.poll_error = Unavailable(what="http://example.org")
    *_, last = pull()
    assert (last.state, last.new_blocks) == ("failed", 0)
    assert "http://example.org cannot be reached" in last.error


@pytest.mark.usefixtures("polled")
def test_a_polled_dataset_is_not_pushed_to_by_another_manifest(node: Coordinator, root: str) -> None:
    with pytest.raises(InvalidInput, match=r"^m0\.yaml:\S+ cities: .*sources cannot be removed: polling"):
        node.add(root, replace=True)
