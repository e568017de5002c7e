"""The keys for secrets are rotated: everything opens, resources do not change, and a kill loses nothing."""

import threading
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from odf_testing.killed_children import fork, is_survivor, kill_before

from odf_common.adapters.local.secret_key_files import drop_former_keys, load_secret_keys, rotate_secret_keys
from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.resources.registry import CORE_TYPES
from odf_common.resources.resource_manifests import InvalidManifests, written_resources
from odf_common.resources.secret_encryption import SecretPlace, decrypt_at_rest
from odf_common.resources.secret_keys import SecretKeys
from odf_coordinator.resources.callers import Subject
from odf_coordinator.resources.documents import etag, input_view
from odf_coordinator.resources.pre_apply import PreApply
from odf_coordinator.resources.secret_rotation import SecretRotation
from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.store import START, Query, StoredResource
from odf_coordinator.resources.use_cases import Batch, Resources

SETS = 3
SECRETS = "{$schema: SecretSet, headers: {name: keys-%d}, spec: {secrets: {pw: swordfish-%d, old: x}}}"
TARGET = "{$schema: WebhookTarget, headers: {name: bell}, spec: {url: 'https://a.example', secret: carp}}"
ACCOUNT = "{$schema: Account, headers: {name: ann}, spec: {email: a@b.example, password: 'trout trout'}}"


def node(home: Path) -> tuple[Resources, SecretRotation]:
    """Return the resources of a home, and the rotation of its keys."""
    store = SqlResourceStore.open(home)
    resources = Resources(
        store=store,
        clock=SYSTEM_CLOCK,
        pre_apply=lambda: PreApply(keys=load_secret_keys(home)),
        controlled=frozenset(str(kind.uri) for kind in CORE_TYPES),
    )
    rotation = SecretRotation(
        store=store,
        load=partial(load_secret_keys, home),
        add=partial(rotate_secret_keys, home),
        drop=partial(drop_former_keys, home),
    )
    return resources, rotation


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with secrets, one of which had another value before."""
    resources, _ = node(tmp_path)
    apply(resources, *(SECRETS % (n, n) for n in range(SETS)), TARGET, ACCOUNT)
    apply(resources, (SECRETS % (0, 0)).replace("old: x", "old: y"))
    return tmp_path


def apply(resources: Resources, *texts: str) -> list[str]:
    """Apply manifests, and return the outcomes."""
    batch = Batch(written=written_resources("\n---\n".join(texts).encode()))
    return [one.outcome for one in resources.apply(Subject(), batch)]


def stored(resources: Resources) -> list[StoredResource]:
    with resources.store.read() as snapshot:
        return list(snapshot.find(Query()).resources)


def exported(resources: Resources) -> list[str]:
    types = resources.types()
    return [str(input_view(types.of_schema(one.schema), one.document)) for one in stored(resources)]


def versions(resources: Resources) -> object:
    with resources.store.read() as snapshot:
        events = [(event.position, event.kind) for event in snapshot.events_after(START)]
    return [(one.id, one.generation, etag(one), one.updated_ms) for one in stored(resources)], events


def texts_of(resources: Resources) -> list[tuple[str, str, str]]:
    """Return id, path and JWE of all secrets, also of those in the history."""
    with resources.store.read() as snapshot:
        specs: list[tuple[str, Any]] = [
            (one.id, one.document["spec"]) for one in snapshot.find(Query()).resources
        ]
        payloads = [(event.resource, event.payload) for event in snapshot.events_after(START)]
    specs += [(id_, payload["spec"]) for id_, payload in payloads if payload and "spec" in payload]
    found = []
    for id_, spec in specs:
        entries: dict[str, Any] = {f"secrets.{name}": one for name, one in spec.get("secrets", {}).items()}
        entries |= {"secret": spec["secret"]} if "secret" in spec else {}
        found += [(id_, f"spec.{path}", entry["value"]) for path, entry in entries.items()]
    return found


def opened(resources: Resources, keys: SecretKeys) -> list[str]:
    """Return all secrets; raises `InvalidJwe` for one that does not open."""
    return [
        decrypt_at_rest(text, SecretPlace(account="odf", resource=id_, path=path), keys)
        for id_, path, text in texts_of(resources)
    ]


def test_all_secrets_open_by_the_new_key_and_no_resource_changes(home: Path) -> None:
    resources, rotation = node(home)
    before, secrets = versions(resources), opened(resources, load_secret_keys(home))
    manifests = exported(resources)
    done = rotation.rotate()
    assert done.number == len(secrets)
    assert not done.unreadable
    assert opened(resources, load_secret_keys(home).current()) == secrets
    assert versions(resources) == before
    assert set(apply(resources, *manifests)) == {"unchanged"}
    assert set(apply(resources, *exported(resources))) == {"unchanged"}
    assert versions(resources) == before
    assert rotation.rewrap().number == 0


def test_former_keys_are_dropped_after_all_secrets_are_by_the_current_ones(home: Path) -> None:
    resources, rotation = node(home)
    manifests, secrets = exported(resources), opened(resources, load_secret_keys(home))
    rotate_secret_keys(home)  # as far as a killed process came
    assert rotation.drop_former().number == len(secrets)
    keys = load_secret_keys(home)
    assert keys == keys.current()
    assert opened(resources, keys) == secrets
    with pytest.raises(InvalidManifests):
        apply(resources, *manifests)
    assert set(apply(resources, *exported(resources))) == {"unchanged"}


def test_a_value_of_before_is_not_accepted_in_its_old_ciphertext(home: Path) -> None:
    resources, rotation = node(home)
    manifests = exported(resources)
    apply(resources, *(SECRETS % (n, 7) for n in range(SETS)))
    rotation.rotate()
    with pytest.raises(InvalidManifests):
        apply(resources, *manifests)


def test_a_rotation_that_is_killed_at_any_statement_continues_at_the_next_start(home: Path) -> None:
    resources, _ = node(home)
    before, secrets = versions(resources), sorted(opened(resources, load_secret_keys(home)))
    rotate_secret_keys(home)
    survived = False
    for statement in count():
        if survived:
            break
        survived = is_survivor(fork(partial(rewrap_until_killed, home, statement)))
        again, rotation = node(home)
        assert sorted(opened(again, load_secret_keys(home))) == secrets
        if statement % 5 == 0:
            rotation.resume(threading.Event())
            assert sorted(opened(again, load_secret_keys(home).current())) == secrets
            rotate_by_a_cheap_key(home)
    assert statement > 5
    assert versions(resources) == before


def rewrap_until_killed(home: Path, statement: int) -> None:
    _, rotation = node(home)
    kill_before(statement)
    rotation.rewrap()


def rotate_by_a_cheap_key(home: Path) -> None:
    """Add a key for secrets at rest only: one of type RSA takes seconds."""
    from joserfc.jwk import OctKey

    keys = load_secret_keys(home)
    new = OctKey.generate_key(256, {"use": "enc", "alg": "A256KW"}, auto_kid=True)
    text = SecretKeys((new, *keys.current().keys, *keys.of_type(OctKey)[1:])).text()
    (home / "keys" / "resources.jwks").write_text(text)


def test_a_change_while_keys_are_rotated_is_encrypted_by_a_key_that_stays(home: Path) -> None:
    resources, rotation = node(home)
    stop = threading.Event()
    writer = threading.Thread(target=change_until, args=(resources, stop))
    writer.start()
    try:
        rotation.rotate()
        rotation.drop_former()
    finally:
        stop.set()
        writer.join()
    assert len(opened(resources, load_secret_keys(home))) > 2 * SETS


def change_until(resources: Resources, stop: threading.Event) -> None:
    for number in count():
        if stop.is_set():
            return
        apply(resources, SECRETS % (number % SETS, number))
