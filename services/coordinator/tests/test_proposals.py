"""`odf commit` against a coordinator that answers over gRPC."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from odf_testing.builders import BLOCK_VERSION, AChain, a_chain, a_dataset, a_hash, a_time
from odf_testing.coordinator import Coordinator

from odf_common.chain.build_blocks import build_blocks
from odf_common.errors import HeadMoved, NotFound, Refused
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import KnownEvent, SetInfo
from odf_common.ports.store import ObjectKind
from odf_coordinator.commit.committer import (
    MAX_ATTEMPTS,
    Overtaken,
    Refusal,
    is_duplicate,
    require_committed,
    retry_on_conflict,
)

Odf = Callable[..., int]


def test_an_event_becomes_the_new_head(
    odf: Odf, node: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("info.yaml").write_text("kind: SetInfo\ndescription: towns\n")

    assert odf("commit", "Cities", "info.yaml", "-o", "json") == 0

    state = node.find("cities").state
    assert state.info is not None
    assert state.info.description == "towns"
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {"alias": "cities", "event": "SetInfo", "head": str(state.head)}


def test_events_are_committed_in_order_and_those_without_effect_add_no_block(
    odf: Odf, node: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("info.json").write_text('{"kind": "setInfo", "keywords": ["a"]}')
    Path("readme.yaml").write_text(
        "kind: MetadataEvent\nversion: 1\ncontent:\n  kind: SetAttachments\n"
        "  attachments: {kind: Embedded, items: [{path: README.md, content: hello}]}\n"
    )
    before = node.find("cities").state.sequence_number

    assert odf("commit", "cities", "info.json", "readme.yaml", "info.json", "-o", "json") == 0

    rows = json.loads(capsys.readouterr().out)
    assert [row["event"] for row in rows] == ["SetInfo", "SetAttachments", "SetInfo"]
    assert rows[1]["head"] == rows[2]["head"] == str(node.find("cities").state.head)
    assert node.find("cities").state.sequence_number == before + 2


def test_a_new_transform_is_resolved_and_committed(odf: Odf, node: Coordinator) -> None:
    Path("t.yaml").write_text(
        "kind: SetTransform\ninputs: [{datasetRef: cities}]\n"
        "transform: {kind: Sql, engine: spark, query: SELECT city FROM cities}\n"
    )

    assert odf("commit", "cities.copy", "t.yaml") == 0

    transform = node.find("cities.copy").state.transform
    assert transform is not None
    assert transform.inputs[0].dataset_ref == str(node.find("cities").id)
    assert [step.query for step in transform.transform.queries or ()] == ["SELECT city FROM cities"]


def test_a_wrong_manifest_is_refused_with_its_place_before_anything_is_committed(
    odf: Odf, node: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("good.yaml").write_text("kind: SetInfo\ndescription: towns\n")
    Path("bad.yaml").write_text("kind: SetLicense\nshortName: MIT\nnames: MIT\n")

    assert odf("commit", "cities", "good.yaml", "bad.yaml") == 1

    said = capsys.readouterr().err
    assert said == "error: bad.yaml:3:1: names: unknown key 'names'; did you mean 'name'?\n"
    assert node.find("cities").state.info is None


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("{kind: AddData}", "error: only the node writes AddData: ingest commits it"),
        ("{kind: DisablePushSource, sourceName: none}", "error: "),
        (
            "{kind: SetTransform, inputs: [{datasetRef: cities}], transform: {kind: Sql, engine: spark}}",
            "error: SetTransform is only allowed in a derivative dataset, not in a Root",
        ),
        ("{kind: SetVocab, offsetColumn: 1}", "error: e.yaml:1:18: offsetColumn: expected a string, got 1"),
    ],
)
def test_a_refused_event_leaves_the_chain_as_it_was(
    odf: Odf, node: Coordinator, capsys: pytest.CaptureFixture[str], event: str, said: str
) -> None:
    Path("e.yaml").write_text(event)
    before = node.find("cities").state

    assert odf("commit", "cities", "e.yaml") == 1

    assert capsys.readouterr().err.startswith(said)
    assert node.find("cities").state == before


def test_events_committed_before_a_refusal_are_reported(odf: Odf, capsys: pytest.CaptureFixture[str]) -> None:
    Path("good.yaml").write_text("kind: SetInfo\ndescription: towns\n")
    Path("bad.yaml").write_text("kind: AddData\n")

    assert odf("commit", "cities", "good.yaml", "bad.yaml", "-o", "json") == 1

    printed = capsys.readouterr()
    assert [row["event"] for row in json.loads(printed.out)] == ["SetInfo"]
    assert printed.err.startswith("stopped at bad.yaml\nerror: only the node writes AddData")


def test_a_missing_file_is_named(odf: Odf, capsys: pytest.CaptureFixture[str]) -> None:
    assert odf("commit", "cities", "none.yaml") == 1
    assert capsys.readouterr().err == "error: file none.yaml does not exist\n"


def test_an_unknown_dataset_names_the_nearest(odf: Odf, capsys: pytest.CaptureFixture[str]) -> None:
    Path("info.yaml").write_text("kind: SetInfo\n")
    assert odf("commit", "citys", "info.yaml") == 1
    assert "citys does not exist" in capsys.readouterr().err


def test_what_is_in_force_is_found_without_walking_the_chain(
    odf: Odf, node: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    node.push("cities", "Oslo")
    node.find("cities")
    reads = 0
    read = node.blobs.read

    def counted(dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bytes:
        nonlocal reads
        reads += 1
        return read(dataset, kind, name)

    node.blobs.read = counted  # type: ignore[method-assign]
    assert odf("inspect", "schema", "cities", "--form", "ddl", "-o", "json") == 0
    definitions = [row["definition"] for row in json.loads(capsys.readouterr().out)]
    assert [text.split()[0] for text in definitions] == ["event_time", "city"], "what `odf add` accepts"
    assert definitions[-1] == "city STRING"
    assert odf("inspect", "schema", "cities", "--form", "odf", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)[0] == {"name": "offset", "type": {"kind": "UInt64"}}
    assert odf("inspect", "schema", "cities", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)[-1] == {"column": "city", "type": "string", "nullable": True}
    assert odf("inspect", "query", "cities.copy", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)[0]["query"] == "SELECT event_time, city FROM cities"
    assert odf("inspect", "lineage", "cities.copy", "-o", "json") == 0
    assert [row["dataset"] for row in json.loads(capsys.readouterr().out)] == ["cities.copy", "cities"]
    assert odf("inspect", "query", "cities") == 1
    assert "cities is a root" in capsys.readouterr().err
    assert reads == 0


def test_the_lineage_of_a_copy_marks_inputs_that_are_not_on_the_node(
    odf: Odf, node: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    cities = node.find("cities").id
    node.catalog.remove("cities")
    assert odf("inspect", "lineage", "cities.copy", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)[1] == {
        "dataset": None, "kind": None, "alias": "Cities", "id": str(cities), "depth": 1,
    }  # fmt: skip
    assert odf("inspect", "lineage", "cities.copy") == 0
    assert "  (not on this node)" in capsys.readouterr().out
    assert odf("inspect", "lineage", "cities") == 1


ONE, TWO, THREE = (SetInfo(description=text) for text in ("one", "two", "three"))


@pytest.fixture
def chain() -> AChain:
    """A chain on which `ONE` and `TWO` were committed, and `THREE` after them."""
    return a_chain().add(ONE).add(TWO).add(THREE)


def asked(
    chain: AChain, expected: Multihash | None, *events: KnownEvent, at: int, other: AChain | None = None
) -> bool:
    """Check whether events were committed on `expected`; `at` is the sequence number of their first block."""
    known = chain.store | (other.store if other else {})

    def read(name: Multihash) -> bytes:
        if name not in known:
            raise NotFound(what=str(name))
        return known[name]

    return is_duplicate(read, chain.state.head, expected, events, chain.blocks[at].block.system_time)


def test_a_commit_is_found_under_the_blocks_that_came_after_it(chain: AChain) -> None:
    assert asked(chain, chain.blocks[2].hash, ONE, at=3)
    assert asked(chain, chain.blocks[4].hash, THREE, at=5)


def test_several_events_are_a_repeat_in_their_order_only() -> None:
    chain = a_chain()
    before, now = chain.state.head, a_time(60)
    blocks, state = build_blocks(chain.state, [ONE, TWO, THREE], system_time=now, version=BLOCK_VERSION)
    store = chain.store | {one.hash: one.raw for one in blocks}

    for events in ((ONE,), (ONE, TWO), (ONE, TWO, THREE)):
        assert is_duplicate(store.__getitem__, state.head, before, events, now)
    assert not is_duplicate(store.__getitem__, state.head, before, (TWO, ONE), now)


def test_no_block_before_the_repeated_ones_is_read(chain: AChain) -> None:
    reads: list[Multihash] = []

    def read(name: Multihash) -> bytes:
        reads.append(name)
        return chain.store[name]

    *_, before, first, last = (block.hash for block in chain.blocks)
    assert not is_duplicate(read, last, before, (TWO, THREE), chain.blocks[4].block.system_time)
    assert set(reads) == {before, first, last}


def test_other_events_or_another_time_are_no_repeat(chain: AChain) -> None:
    before = chain.blocks[2].hash
    assert not asked(chain, before, TWO, at=3)
    assert not asked(chain, before, ONE, at=4)
    assert not asked(chain, before, ONE, TWO, at=3)  # one time for both


def test_more_events_than_were_committed_are_no_repeat(chain: AChain) -> None:
    assert not asked(chain, chain.blocks[4].hash, THREE, ONE, at=5)


def test_the_same_event_on_another_block_is_no_repeat() -> None:
    chain = a_chain().add(ONE, TWO)
    other = a_chain().add(THREE)

    assert chain.blocks[4].block.sequence_number == other.state.sequence_number + 1
    assert not asked(chain, other.state.head, TWO, at=4, other=other)
    assert asked(chain, chain.blocks[3].hash, TWO, at=4, other=other)


def test_a_whole_chain_may_be_proposed_again(chain: AChain) -> None:
    seed = chain.blocks[0].block.event
    assert asked(chain, None, seed, at=0)  # type: ignore[arg-type]
    assert chain.blocks[0].block.system_time == a_time()


def test_an_unknown_block_has_no_successors(chain: AChain) -> None:
    assert not asked(chain, physical_hash_of(b"unknown"), ONE, at=3)


@pytest.mark.parametrize("raw", [b"", bytes(64), b"no block"])
def test_what_is_stored_as_a_block_but_is_none_has_no_successors(chain: AChain, raw: bytes) -> None:
    last, expected = chain.blocks[-1], physical_hash_of(raw)
    store = chain.store | {expected: raw}
    assert not is_duplicate(store.__getitem__, last.hash, expected, [THREE], last.block.system_time)


DATASET = a_dataset()
HASH_ONE, HASH_TWO = a_hash("one"), a_hash("two")


class Change:
    """Succeeds after it has lost the race a few times."""

    def __init__(self, overtaken: int) -> None:
        self.tries = 0
        self._overtaken = overtaken

    def __call__(self) -> str:
        self.tries += 1
        if self.tries <= self._overtaken:
            raise HeadMoved(dataset=str(DATASET), expected=None, actual=None)
        return "done"


@pytest.mark.parametrize("overtaken", [0, 1, 5, MAX_ATTEMPTS - 1])
def test_a_change_that_was_overtaken_is_retried(overtaken: int) -> None:
    change = Change(overtaken)

    assert retry_on_conflict(change) == "done"
    assert change.tries == overtaken + 1


def test_a_change_that_is_always_overtaken_is_abandoned() -> None:
    change = Change(1000)

    with pytest.raises(HeadMoved):
        retry_on_conflict(change)
    assert change.tries == MAX_ATTEMPTS


def test_an_overtaken_proposal_names_both_heads() -> None:
    with pytest.raises(HeadMoved) as moved:
        require_committed(DATASET, Overtaken(expected=HASH_ONE, head=HASH_TWO))

    assert (moved.value.expected, moved.value.actual) == (str(HASH_ONE), str(HASH_TWO))


def test_a_refusal_is_raised_with_its_code_and_text() -> None:
    with pytest.raises(Refused) as refused:
        require_committed(DATASET, Refusal(code="ObjectMissing", text="it is gone"))

    assert (refused.value.reason, refused.value.text) == ("ObjectMissing", "it is gone")
