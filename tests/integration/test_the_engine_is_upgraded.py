"""A home of an earlier semantics number: what cannot differ goes on, and the rest is upgraded, or says why it is not.

`home_of_semantics_1.tar.xz` was written by the node of commit 75f43003 and `write_earlier_home.py`; its engine is
0.1.0+spark4.3.0.s1.bb71a90a73af.
"""

import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from odf_testing.embedded import EmbeddedNode

HOME = Path(__file__).with_name("home_of_semantics_1.tar.xz")
FIRST = "0.1.0+spark4.3.0.s1.bb71a90a73af"
CUT, LOSES = "cut towards the past", "decimals that lose places"
DIFFER = {"fine": CUT, "fine.grouped": CUT, "lossy": LOSES}
# Of several records, and of single ones, of each kind.
CONTINUE = {
    "per.record", "stocked", "daily", "joined", "valued", "grouped", "best", "running", "fine.read",
}  # fmt: skip
UPSERTED = "owners"  # windows over records that could be retracted, but never were
RETRACTED = "joiners"  # a window that is open, and from which that engine has removed one of three records
ROOTS = {"moments", "deals", "rates", "stock", "accounts", "members"}
SQUARED = "CAST(amount AS DECIMAL(19, 18)) * CAST(amount AS DECIMAL(18, 18))"
FEES = f"SELECT event_time, id, CAST({SQUARED} AS DECIMAL(38, 6)) AS squared FROM moments"
B = "SELECT event_time, CAST(regexp_extract(text, '<b>([0-9]+)</b>', 1) AS INT) AS b FROM moments"


def day(number: int) -> str:
    return f"1969-12-{number:02}T12:00:00Z"


LATER: Mapping[str, Mapping[str, Any]] = {
    "moments": {"event_time": day(9), "id": 9, "amount": "0.5", "text": "<a><b>9</b></a>"},
    "deals": {"event_time": day(9), "id": 9, "symbol": "X", "price": 90},
    "rates": {"op": 0, "event_time": day(9), "symbol": "X", "rate": 4},
    "accounts": {"op": 0, "event_time": day(9), "id": 9, "owner": "Zoe"},
    "members": {"op": 0, "event_time": day(9), "id": 9, "name": "Lou"},
}


@pytest.fixture(scope="module")
def earlier(node: EmbeddedNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(HOME) as archive:
        archive.extractall(folder, filter="data")
    opened = EmbeddedNode(folder / "home", node.lent_engine)
    opened.up("--new-ports", "coordinator", "ingest", "verifier", "sync")
    yield opened
    opened.down()


def records(node: EmbeddedNode, *names: str) -> list[int]:
    counts = {row["alias"]: row["records"] for row in node.run("list --output json")}
    return [counts[name] for name in names]


def verdicts(node: EmbeddedNode, names: str = "--all", code: int = 1) -> dict[str, tuple[str, ...]]:
    """Return the verdict of each dataset, and the kinds of its problems."""
    verified = node.run(f"verify {names} --output json", code=code)
    return {one["dataset"]: (one["verdict"], *(each["kind"] for each in one["problems"])) for one in verified}


def problem(node: EmbeddedNode, name: str) -> tuple[str, str]:
    (row,) = node.run(f"status {name} --output json")
    return row["problem"] or "", row["remedy"] or ""


def engine_upgrade(node: EmbeddedNode, words: str, code: int = 0) -> dict[str, Any]:
    rows = node.run(f"engine upgrade {words} --output json", code=code)
    return {row["dataset"]: row for row in rows}


def transform(query: str) -> bytes:
    inputs = [{"datasetRef": "moments", "alias": "moments"}]
    event = {
        "kind": "SetTransform",
        "inputs": inputs,
        "transform": {"kind": "Sql", "engine": "spark", "query": query},
    }
    return json.dumps(event).encode()


def test_blocks_of_queries_that_cannot_differ_are_valid(earlier: EmbeddedNode) -> None:
    found = verdicts(earlier)

    assert found.pop(UPSERTED) == ("valid",)
    assert found == {
        **dict.fromkeys(CONTINUE | ROOTS, ("valid",)),
        **dict.fromkeys(DIFFER, ("not-checked", "results-changed")),
        **dict.fromkeys(("xml", RETRACTED), ("not-checked", "replay-refused")),
    }
    for name, kind in DIFFER.items():
        (verdict,) = earlier.run(f"verify {name} --output json", code=1)
        (said,) = verdict["problems"]
        assert kind in said["text"]
        assert f"a node with spark {FIRST} checks them" in said["text"]


def test_what_will_be_paused_is_named_before_there_is_anything_to_read(earlier: EmbeddedNode) -> None:
    for name, kind in {**DIFFER, "xml": "xpath_int"}.items():
        earlier.eventually(lambda name=name, kind=kind: kind in problem(earlier, name)[0])  # type: ignore[misc]


def test_what_cannot_differ_continues_and_the_rest_is_paused(earlier: EmbeddedNode) -> None:
    before = {row["alias"]: row["records"] for row in earlier.run("list --output json")}
    for name, record in LATER.items():
        earlier.run(f"ingest {name} -", stdin=json.dumps(record).encode())
    earlier.run("pull --all", code=1)
    after = {row["alias"]: row["records"] for row in earlier.run("list --output json")}

    assert {name for name in CONTINUE - {"stocked", "fine.read"} if after[name] <= before[name]} == set()
    for name, kind in DIFFER.items():
        assert after[name] == before[name]
        text, remedy = problem(earlier, name)
        assert kind in text
        assert f"`odf engine upgrade {name}`" in remedy
    assert "xpath_int" in problem(earlier, "xml")[0]
    for name in CONTINUE:
        assert problem(earlier, name) == ("", "")


def test_a_record_that_was_removed_from_an_open_window_is_not_counted(earlier: EmbeddedNode) -> None:
    assert [row["n"] for row in earlier.run(f"tail {RETRACTED} --output json")] == [2]
    assert problem(earlier, RETRACTED) == ("", "")
    row = engine_upgrade(earlier, f"{RETRACTED} --from-start --yes", code=1)[RETRACTED]
    assert row["state"] == "refused"
    assert "members merges by UpsertStream" in row["error"]


def test_an_upgrade_shows_what_differs_before_it_changes_anything(earlier: EmbeddedNode) -> None:
    shown = engine_upgrade(earlier, "--all --dry-run", code=1)

    assert {name for name, row in shown.items() if row["differs"]} == {"fine"}
    assert CUT in shown["fine"]["differs"][0]
    assert shown["fine"]["from"] == FIRST
    assert shown["fine"]["to"] == FIRST.replace(".s1.", ".s2.")
    states = {name: row["state"] for name, row in shown.items()}
    assert states == {
        **dict.fromkeys((*CONTINUE, UPSERTED, RETRACTED, "fine"), "possible"),
        **dict.fromkeys(("fine.grouped", "lossy", "xml"), "refused"),
    }
    assert engine_upgrade(earlier, "fine --dry-run")["fine"]["state"] == "possible"
    said = earlier.fails("engine upgrade fine", code=2)
    assert "cut towards the past" in said
    assert "give --yes" in said


def test_an_upgraded_dataset_continues_from_its_state(earlier: EmbeddedNode) -> None:
    (before,) = records(earlier, "fine")

    assert engine_upgrade(earlier, "fine --yes")["fine"]["state"] == "upgraded"

    earlier.run("pull fine fine.read")
    assert records(earlier, "fine") == [before + 1]
    assert problem(earlier, "fine") == ("", "")
    assert verdicts(earlier, "fine fine.read") == {
        "fine": ("not-checked", "results-changed"),
        "fine.read": ("valid",),
    }
    assert engine_upgrade(earlier, "fine --yes")["fine"]["state"] == "up-to-date"


def test_rows_that_would_be_retracted_otherwise_are_derived_again(earlier: EmbeddedNode) -> None:
    row = engine_upgrade(earlier, "fine.grouped --yes", code=1)["fine.grouped"]
    assert row["state"] == "refused"
    assert "`odf engine upgrade fine.grouped --from-start`" in row["error"]

    row = engine_upgrade(earlier, "fine.grouped --from-start --yes")["fine.grouped"]
    assert row["state"] == "derived-again"

    earlier.run("pull fine.grouped")
    assert problem(earlier, "fine.grouped") == ("", "")
    assert verdicts(earlier, "fine.grouped", code=0) == {"fine.grouped": ("valid",)}


def test_readers_of_what_is_derived_again_are_too(earlier: EmbeddedNode) -> None:
    counts = records(earlier, "fine", "fine.read")

    assert engine_upgrade(earlier, "fine --from-start --yes")["fine"]["state"] == "derived-again"

    earlier.run("pull fine fine.read")
    assert records(earlier, "fine", "fine.read") == counts
    assert verdicts(earlier, "fine fine.read", code=0) == {"fine": ("valid",), "fine.read": ("valid",)}


@pytest.mark.parametrize(
    ("name", "why", "query"), [("lossy", "loses decimal places", FEES), ("xml", "xpath_int", B)]
)
def test_a_query_that_is_refused_is_replaced(earlier: EmbeddedNode, name: str, why: str, query: str) -> None:
    row = engine_upgrade(earlier, f"{name} --yes", code=1)[name]
    assert row["state"] == "refused"
    assert why in row["error"]
    assert f"`odf commit {name} FILE`" in row["error"]
    assert f"`odf reset {name} " in row["error"]

    if name == "xml":
        earlier.run(f"reset {name} 0 --yes")
    earlier.run(f"commit {name} -", stdin=transform(query))

    earlier.run(f"pull {name}")
    assert problem(earlier, name) == ("", "")
    assert engine_upgrade(earlier, f"{name} --yes")[name]["state"] == "up-to-date"


def test_all_others_are_upgraded_at_once(earlier: EmbeddedNode) -> None:
    done = engine_upgrade(earlier, "--all --yes")

    assert {name for name, row in done.items() if row["state"] == "upgraded"} == {
        *CONTINUE,
        UPSERTED,
        RETRACTED,
    }
    earlier.run(
        "ingest deals -", stdin=json.dumps({**LATER["deals"], "event_time": day(12), "id": 12}).encode()
    )
    earlier.run("pull per.record daily grouped best running")
    assert set(verdicts(earlier, "per.record daily grouped best running", code=0).values()) == {("valid",)}
    assert "nothing to upgrade" in earlier.attempt("engine upgrade --all").stderr.decode()


def test_a_root_has_no_engine(earlier: EmbeddedNode) -> None:
    assert "deals is a root" in earlier.fails("engine upgrade deals --yes")
    assert "or --all" in earlier.fails("engine upgrade", code=2)
