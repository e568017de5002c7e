import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from odf_testing.builders import a_chain, a_push_source, a_schema, a_seed

from odf_cli import clients
from odf_cli import main as cli
from odf_common.errors import NotFound
from odf_common.hashing import multibase
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import SetInfo
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire
from odf_common.proto.odf.node.v1 import verifier_pb2 as verdicts
from odf_common.proto.odf.node.v1.coordinator_pb2 import BlockItem, DatasetSummary, LogRequest, ResetRequest

INFOS = [SetInfo(description=str(number)) for number in range(30)]
BLOCKS = a_chain(a_seed(), a_push_source(), a_schema(), *INFOS).blocks
ITEMS = [BlockItem(hash=str(block.hash), content=block.raw) for block in BLOCKS]


@dataclass
class Served:
    """The coordinator's blocks, newest first, and those that were read."""

    items: list[BlockItem] = field(default_factory=lambda: ITEMS[::-1])
    read: int = 0
    resets: list[str] = field(default_factory=list)


@pytest.fixture(autouse=True)
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    served = Served()

    def answer(request: LogRequest, timeout: float) -> Iterator[BlockItem]:
        assert timeout
        for item in served.items:
            served.read += 1
            yield item

    def reset(request: ResetRequest, timeout: float) -> DatasetSummary:
        assert timeout
        served.resets.append(request.head)
        return DatasetSummary(alias=request.ref)

    @contextmanager
    def coordinator() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(Log=answer, Reset=reset)

    monkeypatch.setattr(clients, "coordinator", coordinator)
    return served


def inspected(block: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["inspect", "block", "cities", block]) == 0
    return capsys.readouterr().out.splitlines()[0].removeprefix("# Block: ")


def test_every_number_is_that_of_its_block(capsys: pytest.CaptureFixture[str]) -> None:
    for number, item in enumerate(ITEMS):
        assert inspected(str(number), capsys) == item.hash
        assert inspected(f"00{number}", capsys) == item.hash


def test_a_hash_or_eight_characters_at_either_end_of_it_name_a_block(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = ITEMS[7].hash
    for text in (wanted, wanted[:14], wanted[-8:], wanted[-8:].upper(), wanted.upper().replace("F", "f", 1)):
        assert inspected(text, capsys) == wanted
    assert inspected(multibase.encode(Multihash.parse(wanted).raw, "z"), capsys) == wanted


def test_a_part_of_several_hashes_names_them(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.items = [BlockItem(hash=f"f1620{n}{'ab' * 31}c", content=ITEMS[n].content) for n in range(1, 8)]
    assert cli.main(["inspect", "block", "cities", "babababc"]) == 1
    said = capsys.readouterr().err
    assert "is part of 7 hashes: f16201" in said
    assert said.count("f1620") == 5


@pytest.mark.parametrize(
    ("block", "status", "complaint"),
    [
        ("33", 1, "block 33 in cities does not exist"),
        ("9" * 5000, 1, "does not exist"),
        ("c", 2, "not a sequence number"),
        ("abcdefa", 2, "needs at least 8 characters"),
        ("zzzzzzzz", 1, "block zzzzzzzz in cities does not exist"),
    ],
)
def test_an_unknown_block_is_refused(
    block: str, status: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", "block", "cities", block]) == status
    assert complaint in capsys.readouterr().err


def logged(*options: str) -> list[str]:
    return ["log", "cities", "-o", "json", *options]


def test_a_log_is_filtered_by_several_kinds_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(logged("--filter", "setdataschema", "--filter", "SEED")) == 0
    assert [row["event"]["kind"] for row in json.loads(capsys.readouterr().out)] == ["SetDataSchema", "Seed"]


def test_a_filtered_log_reads_no_further_than_its_limit(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(logged("--filter", "SetInfo", "--limit", "3")) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert served.read == 3


@pytest.mark.parametrize(
    ("kind", "hint"),
    [("AddDat", "did you mean AddData?"), ("setinfos", "SetInfo"), ("", "choose from AddData, ")],
)
def test_an_unknown_kind_is_misuse(kind: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(logged("--filter", kind)) == 2
    assert hint in capsys.readouterr().err


def with_records() -> list[BlockItem]:
    """Return a chain of 3 + 2 blocks with 7 and 1 records, newest first."""
    chain = a_chain().add_data(records=7).add_data(records=1)
    return [BlockItem(hash=str(block.hash), content=block.raw) for block in reversed(chain.blocks)]


@pytest.mark.parametrize(
    ("block", "question"),
    [
        ("2", "Remove the 2 blocks 3 to 4 of cities, with 8 records?"),
        ("3", "Remove block 4 of cities, with 1 record?"),
        ("1", "Remove the 3 blocks 2 to 4 of cities, with 8 records?"),
    ],
)
@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_reset_asks_with_the_number_of_blocks_and_records_that_it_removes(
    served: Served,
    block: str,
    question: str,
    answer: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served.items = with_records()
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer + "\n"))
    assert cli.main(["reset", "cities", block]) == (0 if answer == "y" else 1)
    assert question in capsys.readouterr().err
    assert served.resets == [served.items[4 - int(block)].hash] * (answer == "y")


def test_a_reset_to_the_head_asks_nothing(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.items = with_records()
    assert cli.main(["reset", "cities", "4"]) == 0
    assert capsys.readouterr().err == ""


def test_a_reference_that_cannot_be_read_is_listed_with_its_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    well = wire.RefItem(
        name="head", block="f1620", compared=wire.Comparison(relation="equal", common="f1620")
    )
    well.sequence_number = 0
    broken = wire.RefItem(name="next", problem="it is empty")

    @contextmanager
    def opened() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(ListRefs=lambda request, timeout: wire.ListRefsReply(refs=[well, broken]))

    monkeypatch.setattr(clients, "coordinator", opened)

    assert cli.main(["ref", "list", "cities", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "head", "block": "f1620", "sequence_number": 0,
            "relation": "equal", "ahead": 0, "behind": 0, "common": "f1620", "problem": None,
        },
        {
            "name": "next", "block": None, "sequence_number": None,
            "relation": None, "ahead": None, "behind": None, "common": None, "problem": "it is empty",
        },
    ]  # fmt: skip
    assert cli.main(["ref", "list", "cities"]) == 0
    assert "it is empty" in capsys.readouterr().out


@pytest.mark.parametrize(("relation", "status"), [("equal", 0), ("ahead", 4), ("behind", 4), ("diverged", 4)])
def test_the_exit_status_distinguishes_not_equal_from_refused(
    monkeypatch: pytest.MonkeyPatch, relation: str, status: int
) -> None:
    def compared(request: wire.CompareRequest, timeout: float) -> wire.Comparison:
        if request.left == "nowhere":
            raise NotFound(what=request.left)
        return wire.Comparison(relation=relation)

    @contextmanager
    def opened() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(Compare=compared)

    monkeypatch.setattr(clients, "coordinator", opened)
    assert cli.main(["compare", "cities", "cities@next", "-o", "json"]) == status
    assert cli.main(["compare", "nowhere", "cities"]) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "http://joe:secret@h/a", "cities"),
        ("compare", "cities", "http://joe:secret@h/a"),
        ("push", "cities", "--to", "odf+http://joe:secret@h/a"),
    ],
)
def test_no_command_shows_the_password_of_a_url(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert cli.main(arguments) == 1
    shown = capsys.readouterr()
    assert "credentials do not belong in a URL" in shown.err
    assert "secret" not in shown.out + shown.err


def test_verify_reads_the_url_of_a_folder_as_pull_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def verify(request: verdicts.VerifyRequest, timeout: float) -> Iterator[verdicts.VerifyItem]:
        asked.extend(request.refs)
        yield verdicts.VerifyItem(verdict=verdicts.Verdict(dataset="x", verdict="valid"))

    @contextmanager
    def opened() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(Verify=verify)

    monkeypatch.setattr(clients, "verifier", opened)
    assert cli.main(["verify", "cities@next", "cit%", "file://localhost/tmp/a b", "-o", "json"]) == 0
    assert asked == ["cities@next", "cit%", "file:///tmp/a%20b"]
