import http.client
from itertools import count

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
