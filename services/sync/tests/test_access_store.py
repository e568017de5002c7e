"""`access.db` stores all changes, is private, and allows nothing while it cannot be read."""

import base64
import sqlite3
from pathlib import Path

import pytest
from odf_testing.builders import a_dataset
from odf_testing.clocks import ManualClock
from odf_testing.memory_store import in_files

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.stores import LocalBlobStore
from odf_common.errors import (
    AlreadyExists,
    HeadMoved,
    InvalidInput,
    NotFound,
    OdfError,
    StorageUnavailable,
    Unavailable,
)
from odf_common.identity.dataset_refs import Name, parse_alias
from odf_common.ports.store import CatalogEntry, Incarnation, incarnation
from odf_common.resources.registry import ReservedName
from odf_sync import private_database
from odf_sync.access.access_store import (
    FILE,
    ID_BYTES,
    TOKEN_SECRET_BYTES,
    AccessStore,
    AccessUnreadable,
    Token,
)
from odf_sync.access.directory import Directory, LoginRefused
from odf_sync.access.rules import Action, Role, Verdict, Visibility
from odf_sync.http.authorization import Authorizer

ALICE, BOB = Name("alice"), Name("bob")
HERE = incarnation(a_dataset(), "c0ffee")


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(AccessStore(tmp_path), is_multi_tenant=True)


def test_no_account_is_named_like_the_first_segment_of_a_path_of_resources(directory: Directory) -> None:
    with pytest.raises(ReservedName, match="begin with /config"):
        directory.add_account(Name("Config"), None)


def test_without_a_change_there_is_no_file(directory: Directory, tmp_path: Path) -> None:
    assert directory.store.accounts() == ()
    assert directory.visibility(HERE) is Visibility.PRIVATE
    assert not (tmp_path / FILE).exists()


def test_everything_survives_a_restart(directory: Directory, tmp_path: Path) -> None:
    alice = directory.add_account(ALICE, None)
    token, stored = directory.create_token(Name("Alice"), label="laptop", dataset=HERE)
    directory.store.set_role(HERE, alice, Role.EDITOR)
    directory.store.set_visibility(HERE, Visibility.PUBLIC)
    directory.store.set_origin_token("https://node.example", "secret")
    again = AccessStore(tmp_path)
    assert again.accounts() == (alice,)
    assert again.tokens() == again.tokens(id=token.id) == (stored,)
    assert again.roles(HERE) == {alice: Role.EDITOR}
    assert again.visibility(HERE) is Visibility.PUBLIC
    assert again.origin_token("https://node.example") == "secret"
    assert again.origins() == ("https://node.example",)


def test_lists_are_in_order_however_they_were_filled(directory: Directory) -> None:
    store = directory.store
    added = [directory.add_account(Name(name), None) for name in ("Carol", "alice", "bob")]
    for account in added:
        store.set_role(HERE, account, Role.READER)
        store.set_origin_token(f"https://{account.name.key}.example", "secret")
    tokens = [directory.create_token(account.name, label="")[1] for account in added]
    names = [Name("alice"), Name("bob"), Name("Carol")]
    assert [account.name for account in store.accounts()] == names
    assert [account.name for account in store.roles(HERE)] == names
    assert sorted(store.origins()) == list(store.origins())
    by_age = sorted(tokens, key=lambda token: (token.created_ms, token.id))
    assert list(store.tokens()) == by_age


def test_names_are_unique_regardless_of_case(directory: Directory) -> None:
    directory.add_account(ALICE, None)
    with pytest.raises(AlreadyExists):
        directory.add_account(Name("ALICE"), None)
    with pytest.raises(NotFound):
        directory.set_password(BOB, "long enough")
    with pytest.raises(InvalidInput, match="a password has 8"):
        directory.add_account(BOB, "short")
    with pytest.raises(NotFound):
        directory.create_token(BOB, label="")
    with pytest.raises(InvalidInput, match="label: expected at most 100"):
        directory.create_token(ALICE, label="two\nlines")


def test_an_account_is_removed_with_its_tokens_and_roles(directory: Directory) -> None:
    alice = directory.add_account(ALICE, None)
    token, _ = directory.create_token(ALICE, label="")
    directory.store.set_role(HERE, alice, Role.EDITOR)
    directory.store.remove_account(ALICE)
    assert directory.caller(token.text()).has_invalid_token
    assert directory.store.roles(HERE) == {}
    assert directory.add_account(ALICE, None) != alice
    with pytest.raises(NotFound):
        directory.store.remove_account(BOB)


def test_the_id_of_a_token_without_its_secret_is_no_token(directory: Directory) -> None:
    directory.add_account(ALICE, None)
    token, _ = directory.create_token(ALICE, label="laptop")
    forged = Token(token.raw[:ID_BYTES] + bytes(TOKEN_SECRET_BYTES))
    assert directory.caller(token.text()).name == "alice"
    caller = directory.caller(forged.text())
    assert (caller.has_invalid_token, caller.account, caller.token_id) == (True, None, token.id)


def test_an_account_that_is_removed_while_its_password_is_checked_cannot_log_in(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.add_account(ALICE, "long enough")
    stored = directory.store.password

    def password_of_a_removed_account(name: Name) -> str | None:
        found = stored(name)
        directory.store.remove_account(name)
        return found

    monkeypatch.setattr(directory.store, "password", password_of_a_removed_account)
    with pytest.raises(LoginRefused):
        directory.log_in("alice", "long enough")


@pytest.mark.parametrize("is_multi_tenant", [True, False])
def test_nothing_of_a_deleted_dataset_applies_to_the_next_one_with_its_id(
    tmp_path: Path, *, is_multi_tenant: bool
) -> None:
    directory = Directory(AccessStore(tmp_path), is_multi_tenant=is_multi_tenant)
    directory.add_account(ALICE, None)
    bob = directory.add_account(BOB, None)
    catalog = LocalCatalog(tmp_path)
    authorizer = Authorizer(catalog=catalog, local_writers="loopback", directory=directory)
    unset = Visibility.PRIVATE if is_multi_tenant else Visibility.PUBLIC
    other = Visibility.PUBLIC if is_multi_tenant else Visibility.PRIVATE
    for creation in ("", "first", "second"):
        entry = CatalogEntry(alias="alice/data", dataset_id=a_dataset(), creation=creation)
        catalog.add(entry)
        token, _ = directory.create_token(BOB, label="", dataset=incarnation(a_dataset(), "first"))
        caller = directory.caller(token.text())
        assert directory.visibility(entry.incarnation) is unset
        assert directory.store.roles(entry.incarnation) == {}
        directory.store.set_visibility(entry.incarnation, other)
        directory.store.set_role(entry.incarnation, bob, Role.EDITOR)
        refused = Verdict.FORBIDDEN if other is Visibility.PUBLIC else Verdict.HIDDEN
        expected = Verdict.ALLOWED if creation == "first" else refused
        assert authorizer.verdict(caller, entry, Action.WRITE) is expected
        catalog.remove("alice/data")


@pytest.mark.parametrize(
    ("error", "left"),
    [(HeadMoved(dataset="d", expected=None, actual=None), None), (Unavailable(what="x", why="y"), "public")],
)
def test_the_visibility_of_a_refused_creation_is_forgotten(
    directory: Directory, tmp_path: Path, error: OdfError, left: str | None
) -> None:
    directory.store.set_visibility(HERE, Visibility.PRIVATE)
    authorizer = Authorizer(catalog=LocalCatalog(tmp_path), local_writers="off", directory=directory)
    seen: list[Incarnation] = []

    def create() -> None:
        with authorizer.creating(a_dataset(), Visibility.PUBLIC, is_chosen=False) as creation:
            seen.append(incarnation(a_dataset(), creation))
            assert directory.visibility(seen[0]) is Visibility.PUBLIC
            raise error

    with pytest.raises(type(error)):
        create()
    assert directory.store.visibility(seen[0]) == left
    assert directory.visibility(HERE) is Visibility.PRIVATE


def test_a_private_dataset_stays_private_if_its_damaged_name_has_lost_its_creation(tmp_path: Path) -> None:
    directory = Directory(AccessStore(tmp_path), is_multi_tenant=False)
    restored = incarnation(a_dataset(), "")
    directory.store.set_visibility(HERE, Visibility.PRIVATE)
    assert directory.visibility(restored) is Visibility.PRIVATE
    assert directory.visibility(incarnation(a_dataset(), "another")) is Visibility.PUBLIC
    directory.store.set_visibility(restored, Visibility.PUBLIC)
    assert directory.visibility(restored) is Visibility.PUBLIC


def test_a_private_dataset_stays_private_without_the_database(tmp_path: Path) -> None:
    dataset = a_dataset()
    with_creation, restored = incarnation(dataset, "one"), incarnation(dataset, "")

    def opened() -> Directory:
        return Directory(AccessStore(tmp_path), is_multi_tenant=False, datasets=in_files(tmp_path))

    opened().set_visibility(with_creation, Visibility.PRIVATE)
    (tmp_path / "access.db").unlink()
    assert opened().visibility(with_creation) is Visibility.PRIVATE
    assert opened().visibility(restored) is Visibility.PRIVATE, "its name was lost, too"
    assert opened().visibility(incarnation(a_dataset("other"), "")) is Visibility.PUBLIC

    opened().set_visibility(with_creation, Visibility.PUBLIC)
    assert opened().visibility(with_creation) is Visibility.PUBLIC
    (tmp_path / "access.db").unlink()
    assert opened().visibility(with_creation) is Visibility.PUBLIC


def test_a_dataset_is_marked_before_it_is_private_and_until_it_is_public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AccessStore(tmp_path)
    directory = Directory(store, is_multi_tenant=False, datasets=in_files(tmp_path))

    def fail(*_: object) -> None:
        raise StorageUnavailable(file="access.db", why="the disk is full")

    directory.set_visibility(HERE, Visibility.PRIVATE)
    monkeypatch.setattr(store, "set_visibility", fail)
    other = incarnation(a_dataset("other"), "one")
    for dataset, visibility in ((HERE, Visibility.PUBLIC), (other, Visibility.PRIVATE)):
        with pytest.raises(StorageUnavailable):
            directory.set_visibility(dataset, visibility)
        assert directory.visibility(dataset) is Visibility.PRIVATE


def test_a_mark_counts_more_than_an_older_database(tmp_path: Path) -> None:
    directory = Directory(AccessStore(tmp_path), is_multi_tenant=False, datasets=in_files(tmp_path))
    directory.set_visibility(HERE, Visibility.PUBLIC)
    backup = (tmp_path / FILE).read_bytes()
    directory.set_visibility(HERE, Visibility.PRIVATE)
    for leftover in tmp_path.glob(f"{FILE}*"):
        leftover.unlink()
    (tmp_path / FILE).write_bytes(backup)
    again = Directory(AccessStore(tmp_path), is_multi_tenant=False, datasets=in_files(tmp_path))
    assert again.visibility(HERE) is Visibility.PRIVATE
    again.set_visibility(HERE, Visibility.PUBLIC)
    assert again.visibility(HERE) is Visibility.PUBLIC


def test_a_dataset_that_is_created_private_stays_so_without_the_database(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    directory = Directory(AccessStore(tmp_path), is_multi_tenant=False, datasets=in_files(tmp_path))
    with directory.creating(a_dataset(), Visibility.PRIVATE) as creation:
        assert blobs.note(a_dataset(), "private") is not None, "others look at it once it has a name"
    created = incarnation(a_dataset(), creation)
    (tmp_path / FILE).unlink()
    again = Directory(AccessStore(tmp_path), is_multi_tenant=False, datasets=in_files(tmp_path))
    assert again.visibility(created) is Visibility.PRIVATE


@pytest.mark.parametrize(
    ("error", "stays"), [(AlreadyExists(what="it"), False), (Unavailable(what="it", why="?"), True)]
)
@pytest.mark.parametrize("was_marked", [False, True])
def test_a_dataset_that_may_not_be_created_private_is_not_marked(
    tmp_path: Path, error: OdfError, stays: bool, was_marked: bool
) -> None:
    blobs = LocalBlobStore(tmp_path)
    if was_marked:
        blobs.set_note(a_dataset(), "private", "")
    directory = Directory(AccessStore(tmp_path), is_multi_tenant=False, datasets=in_files(tmp_path))
    with pytest.raises(type(error)), directory.creating(a_dataset(), Visibility.PRIVATE):
        raise error
    assert (blobs.note(a_dataset(), "private") is not None) == (stays or was_marked)


def test_a_choice_of_public_is_marked(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    directory = Directory(AccessStore(tmp_path), is_multi_tenant=False, datasets=in_files(tmp_path))
    for visibility in (Visibility.PUBLIC, Visibility.PRIVATE, Visibility.PUBLIC):
        directory.set_visibility(HERE, visibility)
        marks = [mark for mark in ("public", "private") if blobs.note(a_dataset(), mark) is not None]
        assert marks == [visibility.value]


def test_a_public_dataset_is_never_marked_as_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, blobs = AccessStore(tmp_path), LocalBlobStore(tmp_path)
    marks: list[str | None] = []
    monkeypatch.setattr(store, "set_visibility", lambda *_: marks.append(blobs.note(a_dataset(), "private")))
    directory = Directory(store, is_multi_tenant=False, datasets=in_files(tmp_path))
    directory.set_visibility(HERE, Visibility.PUBLIC)
    assert marks == [None]


def test_revoked_grants_are_gone(directory: Directory) -> None:
    alice = directory.add_account(ALICE, None)
    directory.store.set_role(HERE, alice, Role.EDITOR)
    directory.store.set_role(HERE, alice, None)
    assert directory.store.role(HERE, alice) is None
    directory.store.set_role(HERE, alice, Role.READER)
    directory.store.set_visibility(HERE, Visibility.PUBLIC)
    directory.store.forget(HERE)
    assert directory.store.visibility(HERE) is None
    assert directory.store.roles(HERE) == {}
    directory.store.set_origin_token("https://node.example", "secret")
    assert directory.store.set_origin_token("https://node.example", None)
    assert not directory.store.set_origin_token("https://node.example", None)
    with pytest.raises(NotFound):
        directory.store.revoke("0" * 16)


@pytest.mark.parametrize("content", [b"no database at all, and longer than a header" * 10, b""])
def test_a_damaged_file_allows_nothing_and_an_empty_one_is_new(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    store = AccessStore(tmp_path)
    if not content:
        assert store.accounts() == ()
        return
    for _ in range(2):
        with pytest.raises(AccessUnreadable) as caught:
            store.visibility(HERE)
        assert "backup" in caught.value.advice()


def test_a_file_of_a_later_release_is_left_unchanged(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(AccessUnreadable, match="99"):
        AccessStore(tmp_path).accounts()


def test_a_locked_file_is_unavailable_for_now(
    directory: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_database, "LOCK_SECONDS", 0.05)
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StorageUnavailable):
        directory.add_account(ALICE, None)
    other.execute("COMMIT")
    other.close()
    directory.add_account(ALICE, None)


def test_a_token_with_a_typing_error_is_no_token() -> None:
    token = Token.new()
    text = token.text()
    assert len(text) == 62
    assert Token.parse(text) == token
    assert text not in repr(token)
    for odd in (
        "",
        "odf_",
        text[:-1],
        text + "0",
        text[:10] + "u" + text[11:],
        text.upper(),
        "ka_" + text[4:],
    ):
        assert Token.parse(odd) is None
    other = "1" if text[20] != "1" else "2"
    assert Token.parse(text[:20] + other + text[21:]) is None


def test_a_token_may_have_any_character_of_its_alphabet() -> None:
    every = base64.b32decode("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
    token = Token(every.ljust(ID_BYTES + TOKEN_SECRET_BYTES))
    assert set("0123456789abcdefghjkmnpqrstvwxyz") <= set(token.text())
    assert Token.parse(token.text()) == token


def test_nothing_of_a_removed_account_is_left_in_the_file(directory: Directory, tmp_path: Path) -> None:
    alice, bob = directory.add_account(ALICE, "long enough"), directory.add_account(BOB, None)
    for name in (ALICE, BOB):
        directory.create_token(name, label="laptop")
    for account in (alice, bob):
        directory.store.set_role(HERE, account, Role.EDITOR)

    directory.store.remove_account(ALICE)

    with sqlite3.connect(tmp_path / FILE) as stored:
        left = [stored.execute(f"SELECT account FROM {table}").fetchall() for table in ("tokens", "roles")]
    stored.close()
    assert left == [[(str(bob.id),)]] * 2


def test_a_role_is_one_for_one_dataset_and_one_account(directory: Directory) -> None:
    alice, bob = (directory.add_account(name, None) for name in (ALICE, BOB))
    one, two = (incarnation(a_dataset(name), "created") for name in ("one", "two"))
    directory.store.set_role(one, alice, Role.EDITOR)
    directory.store.set_role(two, bob, Role.READER)
    roles = [directory.store.role(dataset, account) for dataset in (one, two) for account in (alice, bob)]
    assert roles == [Role.EDITOR, None, None, Role.READER]


def test_expired_tokens_are_deleted_with_the_next_one(tmp_path: Path) -> None:
    clock = ManualClock()
    directory = Directory(AccessStore(tmp_path), is_multi_tenant=True, clock=clock)
    directory.add_account(ALICE, None)
    tokens = [directory.create_token(ALICE, label="", seconds=seconds)[1].id for seconds in (1, 3, None)]
    clock.ms += 1000
    tokens.append(directory.create_token(ALICE, label="")[1].id)
    assert {token.id for token in directory.store.tokens()} == set(tokens[1:])


def test_the_visibility_of_a_pushed_dataset_is_used_on_a_multi_tenant_node_or_if_chosen(
    directory: Directory, tmp_path: Path
) -> None:
    for is_multi_tenant in (True, False):
        one = Directory(AccessStore(None), is_multi_tenant=is_multi_tenant)
        authorizer = Authorizer(catalog=LocalCatalog(tmp_path), local_writers="loopback", directory=one)
        for is_chosen in (False, True):
            with authorizer.creating(a_dataset(), Visibility.PUBLIC, is_chosen=is_chosen) as creation:
                found = one.store.visibility(incarnation(a_dataset(), creation))
            assert found == (Visibility.PUBLIC if is_multi_tenant or is_chosen else None)


def test_a_label_has_up_to_a_hundred_printable_characters(directory: Directory) -> None:
    directory.add_account(ALICE, None)
    _, stored = directory.create_token(ALICE, label="x" * 100)
    assert stored.label == "x" * 100
    with pytest.raises(InvalidInput, match="at most 100 printable"):
        directory.create_token(ALICE, label="x" * 101)


def test_the_owner_of_a_name_is_its_account_or_one_that_only_the_name_has(directory: Directory) -> None:
    alice = directory.add_account(ALICE, None)
    assert directory.owner(parse_alias("Alice/data")) == alice
    bob = directory.owner(parse_alias("bob/data"))
    assert bob.name == BOB
    assert bob.id == directory.owner(parse_alias("BOB/other")).id
    assert len({bob.id, alice.id, directory.owner(parse_alias("data")).id}) == 3
