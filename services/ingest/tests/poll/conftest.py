"""A poller of a bench's dataset, and web servers to poll."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from odf_testing.webserver import PageServer, serving_pages

from odf_common.adapters.networks import Networks
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.poll.fetch import Limits
from odf_ingest.poll.poller import Poller, PollSummary

LOOPBACK = Networks.parse(("127.0.0.0/8",))
Poll = Callable[..., PollSummary]


@pytest.fixture
def poll() -> Poll:
    """Return a function that polls a bench's dataset once, with a new poller unless one is given."""

    def run(
        bench: Any,
        *,
        poller: Poller | None = None,
        environ: Mapping[str, str] | None = None,
        report: Callable[[str], None] = lambda _: None,
        **limits: Any,
    ) -> PollSummary:
        used = poller or poller_of(bench, environ, **limits)
        return used.poll(bench.dataset, report, lambda: True)

    return run


def poller_of(bench: Any, environ: Mapping[str, str] | None = None, **limits: Any) -> Poller:
    return Poller(
        queues=bench.queues,
        preparer=bench.preparer,
        rejecting=RejectPolicy(bench.coordinator, bench.blobs),
        blobs=bench.blobs,
        clock=bench.clock,
        environ=environ or {},
        limits=Limits(**{"networks": LOOPBACK} | limits),
    )


@pytest.fixture
def make_poller() -> Callable[..., Poller]:
    """Return a factory of pollers of a bench's dataset."""
    return poller_of


@pytest.fixture
def web() -> Iterator[PageServer]:
    with serving_pages() as server:
        yield server
