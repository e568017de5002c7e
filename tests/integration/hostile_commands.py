"""Neighbours that are commands of users: renamed, deleted, moved and reset under load, interrupted, slow, refused."""

import contextlib
import json
import shutil
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final

from odf_testing.embedded import CommandFailed, EmbeddedNode
from odf_testing.story import Manifest, Row, Sender, as_text
from tests.integration.street import Neighbour, Street, plain_root, rows

BATCH: Final = 20  # records
PAUSE: Final = 0.4  # seconds between two batches
LARGE: Final = 100_000  # records of a file
ENDLESS: Final = (
    "SELECT id, amount, at FROM (SELECT *, explode(sequence(1, 10000)) AS c FROM (SELECT *, "
    "explode(sequence(1, 10000)) AS b FROM (SELECT *, explode(sequence(1, 10000)) AS a FROM input))) "
    "WHERE a + b + c < 0"
)

SLOW: Final = (  # minutes, for 2,000 records
    "SELECT id, amount, at FROM (SELECT *, explode(sequence(1, 3000)) AS b FROM "
    "(SELECT *, explode(sequence(1, 3000)) AS a FROM input)) WHERE a + b < 0"
)


def queried_root(name: str, query: str = "SELECT id, amount, at FROM input") -> Manifest:
    manifest = plain_root(name)
    manifest["content"]["metadata"][0]["preprocess"] = {"kind": "Sql", "engine": "spark", "query": query}
    return manifest


class Load:
    """Publishes to one topic, batch after batch, until it is stopped; `sent` is the number of records."""

    def __init__(self, street: Street, topic: str, first: int = 0) -> None:
        self.sent = first
        self._sender = Sender(street.node)
        self._topic = topic
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator["Load"]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE):
            self._sender.send(self._topic, [json.dumps(one).encode() for one in rows(self.sent, BATCH)])
            self.sent += BATCH


def require_each_once(street: Street, name: str, count: int) -> None:
    """The dataset eventually has each of the records 0, 1, … once, in order."""
    street.await_committed(name, count)
    assert street.story.chain(name).column("id") == list(range(count))


def renamed_added_again_and_reset_while_they_stream(street: Street) -> Generator[str | None, None, None]:
    renamed, again, reset = names = [street.add(f"commands.{name}") for name in ("renamed", "again", "reset")]
    with Load(street, street.story.topic(again)).running():
        street.node.eventually(lambda: street.committed(again) > 0)
    street.delete(again)
    street.add("commands.again")
    with contextlib.ExitStack() as stack:
        loads = [stack.enter_context(Load(street, street.story.topic(name)).running()) for name in names]
        street.node.eventually(lambda: all(street.committed(name) > 2 * BATCH for name in names))
        street.rename(renamed, f"{renamed}.first")
        street.rename(f"{renamed}.first", f"{renamed}.second")
        street.node.eventually(lambda: is_reset(street, reset))
        yield None
    assert street.story.find(renamed) is None
    for name, load in zip((f"{renamed}.second", again, reset), loads, strict=True):
        require_each_once(street, name, load.sent)


def is_reset(street: Street, name: str) -> bool:
    """Reset a dataset to its third block; return whether no commit came in between, which refuses it."""
    try:
        street.node.run(f"reset {name} 3 --yes")
    except CommandFailed as error:
        if "has moved in the meantime" not in str(error):
            raise
        return False
    return True


def moved_by_its_key(street: Street) -> Generator[str | None, None, None]:
    name = street.add("commands.moved")
    street.publish(name, rows(0, 5))
    street.await_committed(name, 5)
    place = street.node.home / "elsewhere" / name
    street.story.copy(name, place)
    key = street.node.run(f"key export {name}")
    street.delete(name)
    street.node.run(f"pull {place.as_uri()} --as {name}")
    street.node.run(f"key import {name} -", stdin=key.encode())
    shutil.rmtree(place)
    street.node.eventually(lambda: "has no topic" in street.trouble(name)[0])
    assert f"odf pull {name}" in street.trouble(name)[1]
    street.node.fails(f"pull {name}")  # creates the topic, which is not the one that the chain knows
    street.story.forget()
    street.publish(name, rows(5, 5))
    yield name
    street.node.run(f"source resume {name} --from earliest")
    require_each_once(street, name, 10)


def query_that_never_ends(street: Street) -> Generator[str | None, None, None]:
    name = street.add("query.endless", lambda name: queried_root(name, ENDLESS))
    street.publish(name, rows(0, 5))
    yield name
    file = street.node.home / f"{name}.yaml"
    file.write_text(json.dumps(queried_root(name)["content"]["metadata"][0]))
    street.node.run(f"commit {name} {file}")
    require_each_once(street, name, 5)
    file.unlink()


def queries_that_take_minutes(street: Street) -> Generator[str | None, None, None]:
    slow = [street.add(f"query.slow.{number}", lambda name: queried_root(name, SLOW)) for number in range(2)]
    quick = street.add("query.quick", queried_root)
    for name in (*slow, quick):
        street.publish(name, rows(0, 2000))
    require_each_once(street, quick, 2000)
    yield slow[0]
    for name in slow:
        street.node.run(f"commit {name} -", stdin=as_text(queried_root(name)["content"]["metadata"][0]))
    for name in slow:
        require_each_once(street, name, 2000)


def ingest_that_is_interrupted(street: Street) -> Generator[str | None, None, None]:
    name = street.add("ingest.interrupted")
    file = street.node.home / f"{name}.ndjson"
    file.write_bytes(b"\n".join(json.dumps(one).encode() for one in rows(0, LARGE)))
    running = street.node.start(f"ingest {name} {file} --output json")
    yield None
    out, _ = running.communicate(timeout=120)
    assert [one["outcome"] for one in json.loads(out)] == ["committed"]
    for presses in (1, 2):
        line = f"ingest {name} {file} --idempotency-key {presses} --output json"
        ended, said = interrupted(street, line, presses)
        assert ended["outcome"] in {"cancelled", "committed", "unknown"}, said
        if ended["outcome"] == "unknown":
            assert f"--idempotency-key {presses}" in said
        else:
            assert street.records(name) == (presses + (ended["outcome"] == "committed")) * LARGE
        (again,) = street.node.run(line)
        assert again["outcome"] in {"committed", "already"}
        assert (again["outcome"] == "already") >= (ended["outcome"] == "committed")
        assert street.records(name) == (presses + 1) * LARGE
    assert list((street.node.home / "staging").iterdir()) == []
    file.unlink()


def interrupted(street: Street, line: str, presses: int) -> tuple[Row, str]:
    """Press Ctrl-C as soon as the node has the file; return the command's report on the file, and its other output."""
    command = street.node.start(line)
    street.node.eventually(lambda: street.story.is_handed_over() or command.poll() is not None)
    for _ in range(presses):
        command.send_signal(signal.SIGINT)
    out, said = command.communicate(timeout=120)
    (row,) = json.loads(out)
    return row, said.decode()


def second_node_with_the_same_topics(street: Street) -> Generator[str | None, None, None]:
    second = EmbeddedNode(street.node.home / "second", street.node.kafka_settings())
    second.home.mkdir(exist_ok=True)
    said = second.fails("up --detach")
    assert str(street.node.home) in said, said
    assert "ODF_KAFKA_PREFIX" in said
    yield None
    second.fails("status")
    shutil.rmtree(second.home)


COMMANDS: Final[tuple[Neighbour, ...]] = (
    renamed_added_again_and_reset_while_they_stream,
    moved_by_its_key,
    query_that_never_ends,
    queries_that_take_minutes,
    ingest_that_is_interrupted,
    second_node_with_the_same_topics,
)
