"""Wires the verifier, which verifies datasets on request over gRPC, and after every commit."""

from functools import partial

from odf_common.codec.envelopes import Envelope, body_of
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import NOTIFICATIONS
from odf_common.proto.odf.bus.v1.bus_pb2 import Committed
from odf_common.service.environment import Environment
from odf_common.service.run import OutgoingMessage, Service, Subscription
from odf_verifier.grpc_servicer import register
from odf_verifier.targets import of_entry
from odf_verifier.verification import OnCommit, Verifier


def build(env: Environment) -> Service:
    """Build the service."""
    seconds = env.settings.query_timeout_ms / 1000
    verifier = Verifier(env, env.engine, env.settings.home, replay_seconds=seconds)
    on_commit = OnCommit(verifier)

    def on_committed(envelope: Envelope) -> tuple[OutgoingMessage, ...]:
        if isinstance(body_of(envelope), Committed):
            entry = env.catalog.by_id(DatasetId.parse(envelope.dataset_id))
            if entry is not None:
                on_commit.add(of_entry(env, entry))
        return ()

    looks = env.settings.verify_on_commit
    return Service(
        name="verifier",
        subscriptions=(Subscription(topic=NOTIFICATIONS, handler=on_committed),) if looks else (),
        grpc=partial(register, datasets=env, verifier=verifier),
        grpc_address=env.settings.verifier_grpc,
        uses=("engine-spark",),
        background=(on_commit.run,) if looks else (),
    )
