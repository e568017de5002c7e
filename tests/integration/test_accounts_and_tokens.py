import base64
import hmac
import http.client
import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import pytest
from odf_testing.embedded import PATIENCE, EmbeddedNode
from odf_testing.story import APPEND, Story, root

from odf_common.adapters.kafka.kafka_bus import KafkaBus
from odf_common.codec.envelopes import decode
from odf_common.ports.bus import AUDIT

COLUMNS = ("id BIGINT", "at TIMESTAMP(3)")
PASSWORD = b"a password of this test\n"
NUMBERS = count()


@pytest.fixture
def account(story: Story) -> str:
    name = f"ann{next(NUMBERS)}"
    story.node.run(f"account add {name} --password-file - -o json", stdin=PASSWORD)
    return name


def ask(node: EmbeddedNode, method: str, path: str, token: str | None, body: bytes = b"") -> int:
    """Send a request like a program on another machine, through a proxy."""
    connection = http.client.HTTPConnection(str(node.node.http).removeprefix("http://"), timeout=PATIENCE)
    headers = {"Via": "proxy", "Content-Type": "application/x-ndjson"}
    try:
        connection.request(
            method, path, body, headers | ({"Authorization": f"Bearer {token}"} if token else {})
        )
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def test_a_token_lets_a_remote_program_read_and_write_until_it_is_revoked(story: Story, account: str) -> None:
    name = f"guarded.{next(NUMBERS)}"
    story.add(root(name, COLUMNS, merge=APPEND, event_time="at"))
    node = story.node
    created = node.run(f"token create {account} --scope write --dataset {name} -o json")
    token, push = created["token"], f"/{name}/ingest"
    record = b'{"id": 1, "at": "2026-01-01T00:00:00Z"}'
    assert ask(node, "POST", push, None, record) == 403
    assert ask(node, "POST", push, token, record) == 200
    assert story.chain(name).column("id") == [1]
    assert ask(node, "GET", f"/{name}/refs/head", None) == 200
    node.run(f"access set {name} --visibility private")
    assert ask(node, "GET", f"/{name}/refs/head", None) == 404
    assert ask(node, "GET", f"/{name}/refs/head", token) == 200
    assert [row["id"] for row in node.run("token list -o json") if row["account"] == account] == [
        created["id"]
    ]
    node.run(f"token revoke {created['id']}")
    assert ask(node, "GET", f"/{name}/refs/head", token) == 401
    assert token not in node.logs()


def test_refusals_and_writes_are_in_the_audit_topic(story: Story, account: str) -> None:
    name = f"audited.{next(NUMBERS)}"
    story.add(root(name, COLUMNS, merge=APPEND, event_time="at"))
    node = story.node
    created = node.run(f"token create {account} --scope write --dataset {name} -o json")
    bus = KafkaBus(node.cluster)
    inbox = bus.subscribe(AUDIT, group=None)
    node.eventually(lambda: inbox.poll(0.1) is None and inbox.has_assignment)
    found: list[tuple[str, str, bool]] = []

    def has_all() -> bool:
        while (message := inbox.poll(0.2)) is not None:
            entry = decode(message.key, message.value).access_decision
            if entry.dataset == name:
                found.append((entry.token_id, entry.action, entry.is_allowed))
        return len(found) >= 2

    assert ask(node, "GET", f"/{name}/refs/head", None) == 200
    assert ask(node, "POST", f"/{name}/ingest", None, b"{}") == 403
    assert (
        ask(node, "POST", f"/{name}/ingest", created["token"], b'{"id": 1, "at": "2026-01-01T00:00:00Z"}')
        == 200
    )
    node.eventually(has_all)
    inbox.close()
    bus.close()
    assert sorted(found) == sorted([("", "write", False), (created["id"], "write", True)])


def test_a_login_is_by_password_and_no_secret_is_printed(story: Story, account: str) -> None:
    node = story.node
    url = str(node.node.http)
    assert node.run(f"login {url} --user {account} --password-file - -o json", stdin=PASSWORD) == {
        "origin": url,
        "account": account,
    }
    assert {"origin": url} in node.run("login -o json")
    said = node.fails(f"login {url} --user {account} --password-file -", stdin=b"a wrong password")
    assert said == f"error: {url} did not accept the login: wrong account or password\n"
    node.run(f"logout {url}")
    assert node.fails(f"logout {url}") == f"error: a login at {url} does not exist\n"
    assert "there is no terminal" in node.fails(f"login {url} --user {account}", code=2)
    assert PASSWORD.partition(b"\n")[0].decode() not in node.logs()


NAME = "posted.to.others"
Posts = queue.Queue[tuple[dict[str, str], dict[str, Any]]]


@contextmanager
def receiving(posts: Posts) -> Iterator[str]:
    """Accept posts; yield the URL for them."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(204)
            self.end_headers()
            posts.put(({name.lower(): value for name, value in self.headers.items()}, json.loads(body)))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_webhook_is_called_until_its_dataset_is_deleted(story: Story) -> None:
    story.add(root(NAME, ["n BIGINT"]))
    node, posts = story.node, Posts()
    with receiving(posts) as url:
        added = node.run(f"webhook add {NAME} {url} --sign hmac-sha256 -o json")
        headers, event = posts.get(timeout=PATIENCE)
        assert (event["event"], event["lastOffset"]) == ("head", None)
        require_signed(headers, url, added["secret"])
        story.ingest(NAME, [{"n": 1}, {"n": 2}])
        while (event := posts.get(timeout=PATIENCE)[1])["lastOffset"] is None:
            """The schema may be committed in an event of its own."""
        assert (event["lastOffset"], event["head"]) == (1, story.summary(NAME)["head"])
        (row,) = (row for row in node.run("webhook list -o json") if row["id"] == added["id"])
        assert (row["dataset"], row["url"], row["error"]) == (NAME, url, None)
        assert added["secret"] not in json.dumps(row)
        node.run(f"delete {NAME} --yes")
        assert posts.get(timeout=PATIENCE)[1]["event"] == "gone"
        assert added["secret"] not in node.logs()


def require_signed(headers: dict[str, str], url: str, secret: str) -> None:
    parameters = headers["signature-input"].removeprefix("odf=")
    message = (
        f'"@method": POST\n"@target-uri": {url}\n"content-type": {headers["content-type"]}\n'
        f'"content-digest": {headers["content-digest"]}\n"@signature-params": {parameters}'
    )
    digest = hmac.new(secret.encode(), message.encode(), "sha256").digest()
    assert headers["signature"] == f"odf=:{base64.b64encode(digest).decode()}:"
