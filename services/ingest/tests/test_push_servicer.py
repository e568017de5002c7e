"""RPCs about accepted pushes, and effects of changes by other processes, without a server or a bus."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from odf_testing.builders import a_dataset, a_derivative
from odf_testing.memory_store import MemoryCatalog

from odf_common.adapters.local.key_files import NotOwned, require_owned
from odf_common.adapters.local.staging import Staging
from odf_common.codec.envelopes import Body, envelope
from odf_common.codec.times import time_message, time_of
from odf_common.errors import InvalidInput, NotFound
from odf_common.identity.did import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import COORDINATOR_REPLIES, INGEST_COMMANDS, NOTIFICATIONS
from odf_common.ports.store import CatalogEntry
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.proto.odf.node.v1 import push_pb2
from odf_common.service.request_reply import Replies
from odf_ingest.accepted_pushes import Receipt, id_of
from odf_ingest.api.bus_handlers import Notices, subscriptions
from odf_ingest.api.lookup import PushTargets
from odf_ingest.api.push_servicer import MAX_WAIT_SECONDS, PushServicer
from odf_ingest.commit.file_commit import digest_of

ROW = '{"id":1,"v":"a","event_time":"2020-01-01T00:00:00Z"}\n'
OTHER = a_dataset("other")
TIME = Timestamp.from_ms(1_600_000_000_000)
ACTIVE = cast("grpc.ServicerContext", SimpleNamespace(is_active=lambda: True))


@pytest.fixture
def bench(make_bench: Any) -> Any:
    return make_bench()


def staged(tmp_path: Path, text: str) -> str:
    file = Staging(tmp_path).path("file-1")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file.name


class Accepted:
    """Keeps receipts; waiting for one returns `settled`."""

    def __init__(self) -> None:
        self.receipts = self
        self.woken: list[object] = []
        self.stored: list[Receipt] = []
        self.waited: list[tuple[str, float]] = []

    def accept(self, dataset: object, receipt: Receipt, file: Path) -> Receipt:
        del dataset
        assert digest_of(file) == receipt.digest
        self.stored.append(receipt)
        return receipt

    def wake(self, dataset: object) -> None:
        self.woken.append(dataset)

    def await_settled(self, dataset: object, receipt: str, seconds: float, _: object) -> Receipt | None:
        del dataset
        self.waited.append((receipt, seconds))
        return next((one for one in self.stored if one.id == receipt), None)


@pytest.fixture
def pushes(bench: Any, tmp_path: Path) -> PushServicer:
    catalog = MemoryCatalog()
    catalog.add(CatalogEntry(alias="cities", dataset_id=bench.dataset))
    key = key_file(tmp_path, bench.dataset)
    key.parent.mkdir()
    key.touch()
    return PushServicer(
        catalog=catalog,
        queues=bench.queues,
        accepted=cast("Any", Accepted()),
        staging=Staging(tmp_path),
        clock=bench.clock,
        streams=cast("Any", None),
        targets=PushTargets(catalog=catalog, require_owned=partial(require_owned, key.parent, catalog)),
    )


def key_file(home: Path, dataset: DatasetId) -> Path:
    return home / "keys" / dataset.folder


def test_the_target_of_a_push_is_checked_before_it_is_sent(pushes: PushServicer, bench: Any) -> None:
    request = push_pb2.PushRequest(ref="cities", idempotency_key="k")
    target = pushes.Check(request, ACTIVE)
    assert (target.dataset_id, target.source_name) == (str(bench.dataset), "default")
    odd: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
        ({"ref": "nowhere"}, NotFound, "nowhere"),
        ({"idempotency_key": ""}, InvalidInput, "1 to 200 printable"),
        ({"idempotency_key": "k" * 201}, InvalidInput, "1 to 200 printable"),
        ({"idempotency_key": "k\n"}, InvalidInput, "1 to 200 printable"),
        ({"idempotency_key": "ü"}, InvalidInput, "1 to 200 printable"),
        ({"source_name": "another"}, InvalidInput, "another"),
        ({"input_format": "nothing"}, Exception, "nothing"),
    )
    for change, error, why in odd:
        with pytest.raises(error, match=why):
            pushes.Check(push_pb2.PushRequest(**{"ref": "cities", "idempotency_key": "k", **change}), ACTIVE)
    assert pushes.Check(push_pb2.PushRequest(ref="cities", idempotency_key="k" * 200), ACTIVE) == target


def test_a_push_to_a_copy_is_not_accepted(pushes: PushServicer, bench: Any, tmp_path: Path) -> None:
    key_file(tmp_path, bench.dataset).unlink()
    request = push_pb2.PushRequest(ref="cities", idempotency_key="k", staged=staged(tmp_path, ROW))
    for call in (pushes.Check, pushes.Accept):
        with pytest.raises(NotOwned, match="cities is a copy"):
            call(request, ACTIVE)
    assert cast("Accepted", pushes.accepted).stored == []


def test_a_push_to_a_derivative_is_not_accepted(
    pushes: PushServicer, bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = a_derivative(bench.dataset).state
    monkeypatch.setattr(bench.queues, "state", lambda _: state)
    request = push_pb2.PushRequest(ref="cities", idempotency_key="k", staged=staged(tmp_path, ROW))
    for call in (pushes.Check, pushes.Accept):
        with pytest.raises(InvalidInput, match="a derivative takes no pushed data"):
            call(request, ACTIVE)
    assert cast("Accepted", pushes.accepted).stored == []


def test_a_push_is_accepted_with_a_receipt_and_its_commit_begun(
    pushes: PushServicer, bench: Any, tmp_path: Path
) -> None:
    accepted = cast("Accepted", pushes.accepted)
    request = push_pb2.PushRequest(
        ref="cities",
        idempotency_key="k",
        staged=staged(tmp_path, ROW),
        input_format="ndjson",
        is_key_generated=True,
    )
    reply = pushes.Accept(request, ACTIVE)
    (stored,) = accepted.stored
    assert (stored.source, stored.key, stored.is_key_generated) == ("default", "k", True)
    assert (stored.input_format, stored.size, stored.accepted_at) == ("ndjson", len(ROW), bench.clock.ms)
    assert stored.event_time == str(Timestamp.from_ms(bench.clock.ms))
    assert (reply.id, reply.size, reply.source_name) == (
        id_of(bench.dataset, "default", "k"),
        len(ROW),
        "default",
    )
    assert time_of(reply.accepted_at).ms == bench.clock.ms
    assert accepted.woken == [bench.dataset]
    request.event_time.CopyFrom(time_message(TIME))
    pushes.Accept(request, ACTIVE)
    assert accepted.stored[-1].event_time == str(TIME)


def test_a_receipt_is_waited_for_up_to_a_minute(pushes: PushServicer, tmp_path: Path) -> None:
    accepted = cast("Accepted", pushes.accepted)
    request = push_pb2.PushRequest(ref="cities", idempotency_key="k", staged=staged(tmp_path, ROW))
    id_ = pushes.Accept(request, ACTIVE).id
    for ms in (0, 1500, 10**9):
        assert pushes.Show(push_pb2.ShowPushRequest(ref="cities", receipt=id_, wait_ms=ms), ACTIVE).id == id_
    assert accepted.waited == [(id_, 0.0), (id_, 1.5), (id_, MAX_WAIT_SECONDS)]
    with pytest.raises(NotFound, match="receipt x of cities"):
        pushes.Show(push_pb2.ShowPushRequest(ref="cities", receipt="x"), ACTIVE)


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        (bus.Committed(head=b"foreign", alias="cities"), [("look", OTHER, "cities")]),
        (bus.Committed(head=b"own", alias="cities"), []),
        (bus.Committed(head=b"foreign", is_derivative=True), []),
        (bus.DatasetRemoved(), [("removed", OTHER)]),
        (bus.TransformProgress(), []),
    ],
)
def test_a_change_by_another_process_is_handled_on_the_readers_thread(
    body: Body, calls: list[object]
) -> None:
    called: list[object] = []
    requested: list[Any] = []
    owned = SimpleNamespace(
        inspect=lambda *one: called.append(("look", *one)),
        remove=lambda one: called.append(("removed", one)),
        own=lambda one: called.append(("own", one)),
    )
    notices = Notices(
        cast("Any", SimpleNamespace(request=requested.append)),
        cast("Any", owned),
        cast("Any", SimpleNamespace(is_own=lambda dataset, head: (dataset, head) == (OTHER, b"own"))),
        lambda: called.append("assigned"),
    )
    assert notices.on_notification(envelope(OTHER, body)) == ()
    assert called == []
    for action in requested:
        action()
    assert called == calls
    notices.on_assigned(frozenset({3}))
    requested[-1]()
    assert called[-2:] == [("own", frozenset({3})), "assigned"]


def test_changes_are_received_by_each_instance_and_commands_by_the_owner(bench: Any) -> None:
    notices = Notices(cast("Any", None), cast("Any", None), bench.queues)
    commands = cast("Any", SimpleNamespace(handle=None))
    found = {one.topic: one for one in subscriptions(notices, commands, Replies(bench.coordinator))}
    assert found.keys() == {COORDINATOR_REPLIES, NOTIFICATIONS, INGEST_COMMANDS}
    assert {topic for topic, one in found.items() if one.group} == {INGEST_COMMANDS}
    assert found[INGEST_COMMANDS].threads > 1
    assert found[INGEST_COMMANDS].on_assigned == notices.on_assigned
