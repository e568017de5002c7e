"""Credentials of the views' Faust worker: the settings of the Kafka cluster, converted to Faust's types."""

import time
from typing import Final

import aiohttp
import faust
from aiokafka.abc import AbstractTokenProvider
from faust.auth import Credentials

from odf_common.adapters.kafka.cluster import OAUTHBEARER, KafkaCluster, Sasl
from odf_common.adapters.networks import open_socket
from odf_common.errors import Unavailable

TIMEOUT_SECONDS: Final = 10.0
RENEWAL_SHARE: Final = 0.8  # of a token's lifetime, after which it is renewed


def credentials_for(cluster: KafkaCluster) -> Credentials | None:
    """Return Faust's credentials; None for a cluster without TLS and SASL. Raises `InvalidInput` for a bad file."""
    context = cluster.tls.context() if cluster.tls else None
    if cluster.sasl is None:
        return None if context is None else faust.SSLCredentials(context)
    if cluster.sasl.mechanism == OAUTHBEARER:
        return faust.OAuthCredentials(oauth_cb=ClientCredentialsGrant(cluster.sasl), ssl_context=context)
    return faust.SASLCredentials(
        username=cluster.sasl.username,
        password=cluster.sasl.password,
        mechanism=cluster.sasl.mechanism,
        ssl_context=context,
    )


class ClientCredentialsGrant(AbstractTokenProvider):
    """Tokens of an OAuth 2.0 token endpoint (RFC 6749, 4.4), renewed before they expire."""

    def __init__(self, sasl: Sasl) -> None:
        """Begin without a token; the first one is requested when it is needed."""
        self._sasl = sasl
        self._token = ""
        self._renew_at = 0.0

    async def token(self) -> str:
        """Return a valid token; raises `Unavailable` if the endpoint gives none."""
        # Faust's producer and consumer run in loops of their own: both may renew at the same time, which is harmless.
        if time.monotonic() >= self._renew_at:
            self._token, lifetime = await self._request()
            self._renew_at = time.monotonic() + lifetime * RENEWAL_SHARE
        return self._token

    async def _request(self) -> tuple[str, float]:
        form = {"grant_type": "client_credentials"}
        if self._sasl.token_scope:
            form["scope"] = self._sasl.token_scope
        login = aiohttp.encode_basic_auth(self._sasl.username, self._sasl.password, encoding="utf-8")
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(socket_factory=open_socket),
                    timeout=timeout,
                    headers={"Authorization": login},
                ) as session,
                session.post(self._sasl.token_url or "", data=form, allow_redirects=False) as response,
            ):
                response.raise_for_status()
                granted = await response.json(content_type=None)
                return str(granted["access_token"]), float(granted.get("expires_in", 0))
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"no token from {self._sasl.token_url}: {type(error).__name__}"
            raise Unavailable(what="Kafka", why=why) from error
