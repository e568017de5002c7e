"""How the views authenticate to Kafka, and when they ask for another token."""

import asyncio
import base64
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import faust
import pytest
from aiohttp import web
from odf_testing.http import running

from odf_common.adapters.kafka.cluster import OAUTHBEARER, KafkaCluster, Sasl
from odf_common.adapters.tls import ClientTls
from odf_common.errors import Unavailable
from odf_coordinator.views import credentials
from odf_coordinator.views.credentials import ClientCredentialsGrant, credentials_for

SCRAM = Sasl(mechanism="SCRAM-SHA-256", username="ann", password="hush")
BEARER = Sasl(mechanism=OAUTHBEARER, username="ann", password="hush", token_url="http://127.0.0.1:1/")


def cluster(*, is_tls: bool, sasl: Sasl | None) -> KafkaCluster:
    return KafkaCluster("127.0.0.1:1", tls=ClientTls() if is_tls else None, sasl=sasl)


def test_a_cluster_without_protection_needs_no_credentials() -> None:
    assert credentials_for(cluster(is_tls=False, sasl=None)) is None


def test_a_cluster_with_tls_only_is_trusted_by_its_certificate() -> None:
    found: Any = credentials_for(cluster(is_tls=True, sasl=None))
    assert isinstance(found, faust.SSLCredentials)
    assert found.context is not None


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_name_and_a_password_are_sent_as_the_cluster_asks(*, is_tls: bool) -> None:
    found: Any = credentials_for(cluster(is_tls=is_tls, sasl=SCRAM))
    assert isinstance(found, faust.SASLCredentials)
    assert (found.username, found.password, found.mechanism.value) == ("ann", "hush", "SCRAM-SHA-256")
    assert (found.ssl_context is not None) == is_tls


@pytest.mark.parametrize("is_tls", [False, True])
def test_tokens_are_used_where_the_cluster_takes_them(*, is_tls: bool) -> None:
    found: Any = credentials_for(cluster(is_tls=is_tls, sasl=BEARER))
    assert isinstance(found, faust.OAuthCredentials)
    assert isinstance(found.oauth_cb, ClientCredentialsGrant)
    assert (found.ssl_context is not None) == is_tls


class Endpoint:
    """A token endpoint, which answers with `answer` and notes the requests."""

    def __init__(self, answer: web.Response | dict[str, object]) -> None:
        self.answer = answer
        self.requests: list[tuple[str, dict[str, str]]] = []

    @contextmanager
    def running(self) -> Iterator[str]:
        app = web.Application()
        app.router.add_post("/token", self._serve)
        app.router.add_get("/elsewhere", self._serve)
        with running(app) as base:
            yield f"{base}/token"

    async def _serve(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.requests.append((request.headers.get("Authorization", ""), form))
        if isinstance(self.answer, web.Response):
            return self.answer
        number = len(self.requests)
        return web.json_response({name: f"{value}{number}" for name, value in self.answer.items()})


@pytest.mark.parametrize("scope", [None, "kafka"])
def test_a_token_is_asked_for_with_name_secret_and_scope(scope: str | None) -> None:
    endpoint = Endpoint({"access_token": "token"})
    with endpoint.running() as url:
        sasl = Sasl(mechanism=OAUTHBEARER, username="änn", password="h:ush", token_url=url, token_scope=scope)
        assert asyncio.run(ClientCredentialsGrant(sasl).token()) == "token1"
    ((login, form),) = endpoint.requests
    assert base64.b64decode(login.removeprefix("Basic ")).decode() == "änn:h:ush"
    assert form == {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})


def test_a_token_is_renewed_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(credentials, "time", SimpleNamespace(monotonic=lambda: now[0]))
    endpoint = Endpoint({"access_token": "token", "expires_in": 10})  # 101, 102 … seconds
    found = []
    with endpoint.running() as url:
        grant = ClientCredentialsGrant(
            Sasl(mechanism=OAUTHBEARER, username="ann", password="hush", token_url=url)
        )
        for now[0] in (1000.0, 1080.0, 1080.8, 1162.0, 1162.4):
            found.append(asyncio.run(grant.token()))
    assert found == ["token1", "token1", "token2", "token2", "token3"]


def test_a_token_without_a_lifetime_is_used_once() -> None:
    endpoint = Endpoint({"access_token": "token"})
    with endpoint.running() as url:
        grant = ClientCredentialsGrant(
            Sasl(mechanism=OAUTHBEARER, username="ann", password="hush", token_url=url)
        )
        assert [asyncio.run(grant.token()) for _ in range(2)] == ["token1", "token2"]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (401, '{"access_token": "token"}'),
        (200, "junk"),
        (200, "[]"),
        (200, "{}"),
        (200, '{"access_token": "token", "expires_in": "soon"}'),
        (302, ""),
    ],
)
def test_an_endpoint_that_gives_no_token_is_named_without_the_secret(status: int, text: str) -> None:
    endpoint = Endpoint(web.Response(status=status, text=text, headers={"Location": "/elsewhere"}))
    with endpoint.running() as url:
        sasl = Sasl(mechanism=OAUTHBEARER, username="ann", password="hush", token_url=url)
        with pytest.raises(Unavailable) as refused:
            asyncio.run(ClientCredentialsGrant(sasl).token())
    assert f"Kafka cannot be reached: no token from {url}" in str(refused.value)
    assert "hush" not in str(refused.value)
    assert len(endpoint.requests) == 1


def test_an_endpoint_that_nobody_serves_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"no token from http://127\.0\.0\.1:1/: ClientConnectorError"):
        asyncio.run(ClientCredentialsGrant(BEARER).token())
