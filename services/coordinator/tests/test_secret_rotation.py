"""The keys for secrets are rotated: everything opens, resources do not change, and a kill loses nothing."""

import threading
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from odf_testing.killed_children import fork, is_survivor, kill_before
from odf_testing.resource_node import apply, exported, node, opened, stored

from odf_common.adapters.local.secret_key_files import load_secret_keys, rotate_secret_keys
from odf_common.resources.resource_manifests import InvalidManifests
from odf_common.resources.secret_keys import SecretKeys
from odf_coordinator.resources.documents import etag
from odf_coordinator.resources.store import START
from odf_coordinator.resources.use_cases import Resources

SETS = 3
SECRETS = "{$schema: SecretSet, headers: {name: keys-%d}, spec: {secrets: {pw: swordfish-%d, old: x}}}"
TARGET = "{$schema: WebhookTarget, headers: {name: bell}, spec: {url: 'https://a.example', secret: carp}}"
ACCOUNT = "{$schema: Account, headers: {name: ann}, spec: {email: a@b.example, password: 'trout trout'}}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with secrets, one of which had another value before."""
    resources, _ = node(tmp_path)
    apply(resources, *(SECRETS % (n, n) for n in range(SETS)), TARGET, ACCOUNT)
    apply(resources, (SECRETS % (0, 0)).replace("old: x", "old: y"))
    return tmp_path


def versions(resources: Resources) -> object:
    with resources.store.read() as snapshot:
        events = [(event.position, event.kind) for event in snapshot.events_after(START)]
    return [(one.id, one.generation, etag(one), one.updated_ms) for one in stored(resources)], events


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
