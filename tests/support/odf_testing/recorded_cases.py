"""Which test plays which recorded exchange, and against which side of this node.

A test gets its cases from here, by its name, so a recording is listed for a test only if that test plays it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, ParamSpec

import pytest

P = ParamSpec("P")


class Side(Enum):
    """Our side of the exchange."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class NotPlayed:
    """Why a recording is not played against a side."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The tests that play a recording against our client, and against our server; or why there is none."""

    client: str | NotPlayed
    server: str | NotPlayed

    def of(self, side: Side) -> str | NotPlayed:
        """Return the entry of a side."""
        return self.client if side is Side.CLIENT else self.server


BY_HAND: Final = NotPlayed(
    "requests that no client sends: they were written by hand, to show what the server answers"
)
NO_CHECK: Final = NotPlayed("our client checks a token by /accounts/me, where it also learns whose it is")
PUSH_OF_ROWS: Final = NotPlayed("no command of ours sends rows to another node")

SERVED: Final = "test_our_server_answers_simple_requests_as_recorded"
SERVED_PULL: Final = "test_our_server_answers_a_pull_as_recorded"
SERVED_PUSH: Final = "test_our_server_accepts_a_push_as_recorded"
NOT_PUSHED: Final = "test_our_server_answers_as_recorded_and_nothing_changes"
CALLED: Final = "test_recorded_calls_get_the_recorded_answers"
INGESTED: Final = "test_a_recorded_push_is_answered_as_recorded"
READ: Final = "test_our_server_answers_reads_as_recorded"
NO_QUERIES: Final = "test_queries_are_refused_as_by_a_node_without_a_signing_key"

COPIES: Final = "test_our_client_copies_by_the_simple_protocol_as_recorded"
PULLS: Final = "test_our_client_pulls_as_recorded"
PUSHES: Final = "test_our_client_pushes_as_recorded"
SPEAKS: Final = "test_our_end_of_an_exchange_sends_and_accepts_the_recorded_messages"
FINDS_NOTHING: Final = "test_our_client_requests_a_hidden_dataset_once"

RECORDINGS: Final = {
    "simple-pull-new": Sides(client=COPIES, server=SERVED),
    "simple-pull-up-to-date": Sides(client=COPIES, server=SERVED),
    "simple-pull-missing": Sides(client=FINDS_NOTHING, server=SERVED),
    "simple-pull-client-ahead": Sides(
        client="test_our_client_refuses_a_server_that_is_behind", server=SERVED
    ),
    "simple-pull-diverged": Sides(
        client="test_our_client_reads_a_diverged_chain_down_to_the_common_block", server=SERVED
    ),
    "static-cities": Sides(client=COPIES, server=SERVED),
    "single-tenant-simple-pull": Sides(client=COPIES, server=SERVED),
    "refs-blocks-objects": Sides(
        client=BY_HAND, server="test_our_server_answers_single_requests_as_recorded"
    ),
    "object-put": Sides(client=BY_HAND, server="test_our_server_accepts_objects_as_recorded"),
    "smart-pull-new": Sides(client=PULLS, server=SERVED_PULL),
    "smart-pull-up-to-date": Sides(client=PULLS, server=SERVED_PULL),
    "smart-pull-incremental": Sides(client=PULLS, server=SERVED_PULL),
    "smart-pull-missing": Sides(client=FINDS_NOTHING, server=SERVED_PULL),
    "smart-pull-diverged": Sides(
        client="test_our_client_names_the_common_ancestor_of_a_diverged_chain", server=SERVED_PULL
    ),
    "smart-pull-private-owner": Sides(client=PULLS, server=SERVED_PULL),
    "smart-pull-private-anonymous": Sides(client=FINDS_NOTHING, server=SERVED_PULL),
    "smart-pull-old-layout": Sides(client=PULLS, server=SERVED_PULL),
    "smart-pull-unknown-begin": Sides(client=SPEAKS, server=SERVED_PULL),
    "smart-pull-unknown-stop": Sides(client=SPEAKS, server=SERVED_PULL),
    "smart-pull-two-object-rounds": Sides(client=SPEAKS, server=SERVED_PULL),
    "version-header": Sides(client=BY_HAND, server=SERVED_PULL),
    "smart-push-new": Sides(client=PUSHES, server=SERVED_PUSH),
    "smart-push-new-no-objects": Sides(client=PUSHES, server=SERVED_PUSH),
    "smart-push-up-to-date": Sides(
        client="test_our_client_requests_only_the_head_if_nothing_is_new", server=NOT_PUSHED
    ),
    "smart-push-diverged": Sides(
        client="test_our_client_refuses_a_push_that_has_diverged", server=NOT_PUSHED
    ),
    "smart-push-other-account": Sides(
        client="test_our_client_reports_a_push_that_is_not_allowed", server=NOT_PUSHED
    ),
    "smart-push-anonymous": Sides(
        client="test_our_client_reports_a_push_that_is_not_allowed", server=NOT_PUSHED
    ),
    "smart-push-id-already-there": Sides(
        client="test_our_client_reports_a_push_that_fails_after_the_blocks", server=NOT_PUSHED
    ),
    "smart-push-to-repo-name": Sides(
        client="test_our_client_pushes_to_a_repository_by_its_name_as_recorded", server=SERVED_PUSH
    ),
    "smart-push-invalid-head": Sides(client=SPEAKS, server=NOT_PUSHED),
    "smart-push-slow-upload": Sides(
        client=SPEAKS, server="test_our_server_requests_the_progress_of_slow_uploads_as_recorded"
    ),
    "smart-push-truncated-rounds": Sides(client=SPEAKS, server=SERVED_PUSH),
    "smart-push-corrupt-block": Sides(
        client=SPEAKS, server="test_our_server_keeps_nothing_of_a_push_with_a_corrupt_block"
    ),
    "single-tenant-push": Sides(client=PUSHES, server=SERVED_PUSH),
    "single-tenant-info": Sides(client=BY_HAND, server="test_a_single_tenant_node_answers_as_recorded"),
    "rest-identity": Sides(client=BY_HAND, server=CALLED),
    "rest-login": Sides(client=BY_HAND, server=CALLED),
    "device-flow": Sides(client=BY_HAND, server=CALLED),
    "login-password": Sides(client="test_our_client_logs_in_with_a_password_as_recorded", server=CALLED),
    "login-check": Sides(client=NO_CHECK, server=CALLED),
    "ingest-csv": Sides(client=PUSH_OF_ROWS, server=INGESTED),
    "ingest-no-change": Sides(client=PUSH_OF_ROWS, server=INGESTED),
    "query": Sides(client=BY_HAND, server=NO_QUERIES),
    "dataset-tail-metadata": Sides(client=BY_HAND, server=READ),
}


def plays(side: Side) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Give a test the recordings, as `case`, that it is to play against a side."""

    def with_cases(test: Callable[P, None]) -> Callable[P, None]:
        cases = [case for case, sides in RECORDINGS.items() if sides.of(side) == test.__name__]
        assert cases, f"{test.__name__} plays no recording against our {side.value}"
        marked: Callable[P, None] = pytest.mark.parametrize("case", cases)(test)
        return marked

    return with_cases
