"""The table of permissions, written independently of the code; private origins; and sync's private databases."""

import sqlite3
import stat
from collections import Counter
from itertools import product
from pathlib import Path
from random import Random

import pytest
from odf_testing.builders import a_dataset

from odf_common.errors import Damaged, StorageUnavailable
from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.ports.store import incarnation
from odf_sync.access.lineage import Ancestor, Lineage
from odf_sync.access.rules import (
    Account,
    Action,
    Caller,
    Role,
    Scope,
    Verdict,
    Visibility,
    decide,
    decide_creation,
)
from odf_sync.private_database import PrivateDatabase

ONE, OTHER = incarnation(a_dataset("one"), ""), incarnation(a_dataset("other"), "")
ALICE = Account(id=a_dataset("alice"), name=Name("alice"))
READS, WRITES, MANAGES = {Action.READ}, {Action.READ, Action.WRITE, Action.CREATE}, set(Action)
MAY = {Role.READER: READS, Role.EDITOR: WRITES, Role.MAINTAINER: MANAGES, Role.OWNER: MANAGES}


@pytest.mark.parametrize(("action", "visibility"), tuple(product(Action, Visibility)))
def test_a_role_allows_what_lesser_ones_do_and_more(action: Action, visibility: Visibility) -> None:
    for role, allowed in MAY.items():
        is_allowed = action in allowed or (visibility is Visibility.PUBLIC and action is Action.READ)
        assert decide(action, role, visibility) is (Verdict.ALLOWED if is_allowed else Verdict.FORBIDDEN)


@pytest.mark.parametrize("action", Action)
def test_without_a_role_a_private_dataset_is_hidden_and_a_public_one_read(action: Action) -> None:
    assert decide(action, None, Visibility.PRIVATE) is Verdict.HIDDEN
    public = Verdict.ALLOWED if action is Action.READ else Verdict.FORBIDDEN
    assert decide(action, None, Visibility.PUBLIC) is public


@pytest.mark.parametrize(
    ("scope", "most"), [(Scope.READ, Role.READER), (Scope.WRITE, Role.EDITOR), (Scope.MANAGE, Role.OWNER)]
)
def test_a_token_restricts_a_role_and_grants_none(scope: Scope, most: Role) -> None:
    for role in Role:
        assert Caller(account=ALICE, scope=scope).limit_role(role, ONE) is (min(role, most))
        assert Caller(account=ALICE, scope=scope, only=ONE).limit_role(role, ONE) is min(role, most)
        assert Caller(account=ALICE, scope=scope, only=ONE).limit_role(role, OTHER) is None
        assert Caller(account=ALICE, scope=scope, only=ONE).limit_role(role, None) is None
    assert Caller(account=ALICE, scope=scope).limit_role(None, ONE) is None


@pytest.mark.parametrize(
    ("caller", "owner", "verdict"),
    [
        (Caller(), Name("alice"), Verdict.UNAUTHENTICATED),
        (Caller(), None, Verdict.UNAUTHENTICATED),
        (Caller(account=ALICE), Name("Alice"), Verdict.ALLOWED),
        (Caller(account=ALICE), Name("bob"), Verdict.NOT_OWN_ACCOUNT),
        (Caller(account=ALICE), None, Verdict.NOT_OWN_ACCOUNT),
        (Caller(account=ALICE, scope=Scope.WRITE), Name("alice"), Verdict.ALLOWED),
        (Caller(account=ALICE, scope=Scope.READ), Name("alice"), Verdict.NOT_OWN_ACCOUNT),
        (Caller(account=ALICE, only=ONE), Name("alice"), Verdict.NOT_OWN_ACCOUNT),
    ],
)
def test_a_dataset_is_created_in_the_callers_account_with_a_token_that_may_write(
    caller: Caller, owner: Name | None, verdict: Verdict
) -> None:
    assert decide_creation(caller, owner) is verdict


def test_a_caller_without_an_account_has_no_name() -> None:
    assert (Caller().name, Caller(account=ALICE).name) == ("", "alice")


IDS = [a_dataset(f"dataset {number}") for number in range(12)]


def a_graph(random: Random) -> dict[DatasetId, Ancestor]:
    """Return datasets that read any others, in circles too."""
    return {
        dataset: Ancestor(
            inputs=tuple(random.sample(IDS, random.choice([0, 1, 1, 2, 3]))),
            is_private=random.random() < 0.2,
            is_known=random.random() < 0.95,
            published=frozenset(random.sample(IDS, random.choice([0, 0, 1, 3]))),
        )
        for dataset in IDS
    }


def reaches(graph: dict[DatasetId, Ancestor], origin: DatasetId, target: DatasetId) -> bool:
    """Return whether a private or unknown dataset reaches another, by following its readers."""

    def readers(read: DatasetId) -> list[DatasetId]:
        stops = IDS if graph[origin].is_known else ()  # damage cannot be published
        return [
            reader
            for reader in IDS
            if read in graph[reader].inputs and not (origin in graph[reader].published and reader in stops)
        ]

    seen = set[DatasetId]()
    waiting = [] if graph[origin].is_known else [origin]
    if graph[origin].is_private:
        waiting += readers(origin)
    while waiting:
        if (current := waiting.pop()) not in seen:
            seen.add(current)
            waiting += readers(current)
    return target in seen


@pytest.mark.parametrize("seed", range(60))
def test_a_dataset_has_the_sources_that_reach_it_and_each_is_looked_at_once(seed: int) -> None:
    random = Random(seed)
    graph, looks = a_graph(random), Counter[DatasetId]()

    def look(dataset: DatasetId) -> Ancestor:
        looks[dataset] += 1
        return graph[dataset]

    lineage = Lineage(look)
    for target in random.sample(IDS, len(IDS)):
        expected = {origin for origin in IDS if reaches(graph, origin, target)}
        assert lineage.sources(target) == expected
        assert all(graph[origin].is_private for origin in lineage.to_publish(target))
    assert set(looks.values()) == {1}


@pytest.mark.parametrize("seed", range(60))
def test_what_is_published_leaves_only_what_nobody_knows(seed: int) -> None:
    graph = a_graph(Random(seed))
    for target in IDS:
        published = Lineage(graph.__getitem__).to_publish(target)
        after = graph | {target: Ancestor(inputs=graph[target].inputs, published=published)}
        assert all(not graph[origin].is_known for origin in Lineage(after.__getitem__).sources(target))


def test_an_error_leaves_what_can_be_known() -> None:
    first, second, third = IDS[:3]
    graph = {first: Ancestor(is_private=True), second: Ancestor(inputs=(first, third))}
    lineage = Lineage(graph.__getitem__)
    for _ in range(2):
        with pytest.raises(KeyError):
            lineage.sources(second)
    assert lineage.sources(first) == frozenset()
    graph[third] = Ancestor()
    assert lineage.sources(second) == {first}


TABLES = "CREATE TABLE one(id INTEGER PRIMARY KEY); CREATE TABLE two(one INTEGER REFERENCES one(id));"
FILE = "private.sqlite"


def opened(home: Path | None) -> PrivateDatabase:
    return PrivateDatabase(home, FILE, TABLES, lambda why: Damaged(file="it", why=why), version=3)


def test_it_is_durable_and_overwrites_deleted_bytes(tmp_path: Path) -> None:
    database = opened(tmp_path)
    assert database.change("INSERT INTO one VALUES (1)") == 1
    assert database.rows("PRAGMA synchronous") == [(3,)], "EXTRA"
    assert database.rows("PRAGMA secure_delete") == [(1,)]
    assert database.rows("PRAGMA user_version") == [(3,)]
    with pytest.raises(sqlite3.IntegrityError):
        database.change("INSERT INTO two VALUES (2)")
    assert database.change("INSERT INTO two VALUES (?)", 1) == 1
    assert database.change("DELETE FROM one WHERE id = ?", 7) == 0
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_reading_creates_no_file_and_writes_survive_a_restart(tmp_path: Path) -> None:
    assert opened(tmp_path / "home").rows("SELECT * FROM one") == []
    assert list(tmp_path.iterdir()) == []
    opened(tmp_path / "home").change("INSERT INTO one VALUES (1)")
    assert opened(tmp_path / "home").rows("SELECT * FROM one") == [(1,)]
    in_memory = opened(None)
    in_memory.change("INSERT INTO one VALUES (2)")
    assert in_memory.rows("SELECT * FROM one") == [(2,)]


def test_another_version_or_file_format_is_damaged_and_a_transient_fault_is_not(
    tmp_path: Path,
) -> None:
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("PRAGMA user_version = 4")
    with pytest.raises(Damaged, match="it has version 4, and this release knows 3"):
        opened(tmp_path).rows("SELECT * FROM one")
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    with pytest.raises(Damaged):
        opened(tmp_path).change("INSERT INTO one VALUES (1)")
    with pytest.raises(StorageUnavailable):
        opened(None).rows("SELECT * FROM three")


def test_threads_use_its_connection_one_after_another() -> None:
    database, is_locked = opened(None), []
    database.change("INSERT INTO one VALUES (1)")
    assert database._connection is not None
    database._connection.set_trace_callback(lambda _: is_locked.append(database._lock.locked()))
    database.rows("SELECT * FROM one")
    database.change("DELETE FROM one")
    assert len(is_locked) >= 2
    assert all(is_locked)
