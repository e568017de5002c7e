"""Wires sync: copies over gRPC, datasets over HTTP."""

from functools import partial

from odf_common.ports.bus import COORDINATOR_REPLIES
from odf_common.service.environment import Environment
from odf_common.service.request_reply import Replies
from odf_common.service.run import Service
from odf_sync.grpc_servicer import register
from odf_sync.server import serve_http


def build(env: Environment) -> Service:
    """Build the service."""
    replies = Replies(env.bus)
    return Service(
        name="sync",
        subscriptions=(replies.subscription(COORDINATOR_REPLIES),),
        grpc=partial(register, env=env, replies=replies),
        grpc_address=env.settings.sync_grpc,
        background=(partial(serve_http, env),),
    )
