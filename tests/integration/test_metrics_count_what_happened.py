"""The metrics of a running node: each that is documented is served, and counts what clients have seen."""

import http.client
import re
import signal
import socket
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from odf_testing.embedded import PATIENCE, EmbeddedNode
from odf_testing.story import Story, derivative, root
from prometheus_client.parser import text_string_to_metric_families

from .test_accounts_and_tokens import Posts, receiving

COUNTED, HOURLY = "counted.records", "counted.hourly"
COLUMNS = ("id BIGINT", "at TIMESTAMP(3)")
WINDOWS = "SELECT window.start AS event_time, count(*) AS n FROM records GROUP BY window(at, '1 hour')"
REFERENCE: Final = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
MANIFESTS: Final = b"""
{$schema: VariableSet, headers: {name: env}, spec: {variables: {a: '1'}}}
---
{$schema: SecretSet, headers: {name: keys}, spec: {secrets: {pw: swordfish}}}
"""
RATE: Final = 1  # request a second, after a burst of five
LIMITED: Final = 429


@pytest.fixture(scope="module")
def counting(node: EmbeddedNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """A node of its own, whose counters nobody else has moved; its engine and Kafka are another's."""
    settings = {"ODF_HTTP_REQUESTS_PER_SECOND": str(RATE), "ODF_FETCH_NETWORKS": "127.0.0.0/8"}
    made = node.guest(tmp_path_factory.mktemp("counting"), settings)
    made.up("ingest", "coordinator", "verifier", "sync", "views")
    yield Story(made)
    made.down()


def row(id_: int, hour: int) -> dict[str, object]:
    return {"id": id_, "at": f"2026-01-01T{hour:02}:30:00Z"}


def served(story: Story, *, frozen: str = "") -> Counter[str]:
    """Return the sum of each metric over the services and its labels; of a histogram, the number of observations."""
    found = Counter[str]()
    for service, address in story.node.node.metrics.items():
        if service == frozen:
            continue
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as answer:
            for family in text_string_to_metric_families(answer.read().decode()):
                for sample in family.samples:
                    if sample.name.startswith("odf_") and not sample.name.endswith(
                        ("_created", "_sum", "_bucket")
                    ):
                        found[sample.name.removesuffix("_count")] += int(sample.value)
    return found


def ask(story: Story, method: str, path: str, body: str | None = None, **headers: str) -> int:
    """Return the status of the node's answer."""
    connection = http.client.HTTPConnection(
        str(story.node.node.http).removeprefix("http://"), timeout=PATIENCE
    )
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def send_nonsense(story: Story) -> None:
    host, port = str(story.node.node.http).removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        connection.recv(1000)


def run_a_flow(story: Story) -> int:
    """Run a flow once for a dataset of its own; return the number of these resources."""
    verify = "{kind: Ext, $schema: https://node.odf.example/schemas/flow/v1alpha1/Verify}"
    dataset = "{$schema: Dataset, headers: {name: counted.flow}, spec: {kind: Root, metadata: []}}"
    flow = f"{{$schema: Flow, headers: {{name: f}}, spec: {{target: 'Dataset:counted.flow', triggers: [], tasks: [{verify}]}}}}"
    applied = story.node.run("apply -f - --wait 60s --output json", stdin=f"{dataset}\n---\n{flow}".encode())
    story.node.run("flow run f")
    return len(applied)


def test_each_documented_metric_counts_what_clients_have_seen(counting: Story) -> None:
    story = counting
    story.add(root(COUNTED, COLUMNS, event_time="at"), derivative(HOURLY, {"records": COUNTED}, WINDOWS))
    posts = Posts()
    with receiving(posts) as url:
        story.node.run(f"webhook add {COUNTED} {url}")
        posts.get(timeout=PATIENCE)
        story.publish(COUNTED, [row(1, 1), row(2, 2), b"no record", row(3, 9)])
        story.await_records({COUNTED: 3, HOURLY: 2})
        story.publish(COUNTED, [row(4, 1)])  # its window has ended
        story.await_records({COUNTED: 4})
        assert (
            ask(story, "POST", f"/{COUNTED}/ingest?wait=commit", '{"id": 5, "at": "2026-01-01T09:40:00Z"}')
            == 200
        )
    number = len(story.node.run("apply -f - --wait --output json", stdin=MANIFESTS))
    number += run_a_flow(story)
    send_nonsense(story)
    while ask(story, "GET", f"/{COUNTED}/refs/head") != LIMITED:
        """The burst is not used up."""
    exact = {
        "odf_ingest_records_total": 5,
        "odf_ingest_dead_letters_total": 1,
        "odf_ingest_late_records_total": 1,
        "odf_transform_late_records_total": 1,
        "odf_ingest_pushes_total": 1,
        "odf_ingest_lag": 0,
        "odf_ingest_stopped": 0,
        "odf_flow_runs_total": 1,
        "odf_http_malformed_requests_total": 1,
        "odf_http_rate_limited_total": 1,
        "odf_http_connections_closed_total": 0,
        "odf_audit_dropped_total": 0,
        "odf_resource_attempts_total": number + 1,  # and at the account
        "odf_resource_attempt_seconds": number + 1,
        "odf_resources": number + 2,  # and the account, and the task of the run
        "odf_resources_due": 0,
    }
    story.node.eventually(lambda: {name: served(story)[name] for name in exact} == exact)
    found = served(story)
    moved = ["odf_ingest_seconds", "odf_message_seconds", "odf_messages_total", "odf_owned_partitions"]
    moved += ["odf_webhook_attempts_total", "odf_audit_entries_total"]
    assert {name for name in moved if found[name] > 0} == set(moved)

    story.node.kill("coordinator", signal.SIGSTOP)
    try:
        story.publish(COUNTED, [row(6, 9)])
        story.node.eventually(lambda: served(story, frozen="coordinator")["odf_unreachable_seconds"] > 0)
    finally:
        story.node.kill("coordinator", signal.SIGCONT)
    story.await_records({COUNTED: 6})
    story.node.eventually(lambda: served(story)["odf_unreachable_seconds"] == 0)
    tested = {*exact, *moved, "odf_unreachable_seconds"}
    tested |= {
        "odf_retries_total",
        "odf_http_connections",
    }  # by the tests of what retries, and of the HTTP server
    assert tested == set(re.findall(r"^\| `(\w+)`", REFERENCE.read_text(), re.MULTILINE))
