"""Rights that Relations resources give, and accounts as resources, over a store in memory; several accounts."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from odf_testing.resource_node import begin, end

from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.errors import OdfError
from odf_common.identity.dataset_refs import Name
from odf_common.resources.failures import DependencyMissing
from odf_common.resources.node_accounts import NODE_DID, is_implied
from odf_common.resources.registry import CORE_TYPES
from odf_common.resources.resource_manifests import InvalidManifests, Problem, written_resources
from odf_common.resources.secret_keys import SecretKeys
from odf_coordinator.resources.attempts import Attempts
from odf_coordinator.resources.callers import Subject
from odf_coordinator.resources.changes import Outcome
from odf_coordinator.resources.pre_apply import PreApply
from odf_coordinator.resources.relation_watch import watch_grants
from odf_coordinator.resources.relations import RelationsController, dataset_grants
from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.use_cases import Batch, ResourceRef, Resources
from odf_coordinator.resources.watch import Watch

NODE = Subject()
KEYS = SecretKeys.new()
ALICE, BOB = (
    Subject(did=f"did:odf:fed01{digit * 64}", name=name, is_admin=False)
    for name, digit in (("alice", "a"), ("bob", "b"))
)
DATASET = "{$schema: Dataset, headers: {name: %s}, spec: {kind: Root, metadata: []}}"
SECRETS = "{$schema: SecretSet, headers: {name: keys}, spec: {secrets: {pw: swordfish}}}"
SOURCE = """
$schema: Source
headers: {name: orders}
spec:
  config: {token: 'SecretSet:alice/keys#pw'}
  ingress: {kind: Url, url: 'http://localhost/${{ config.token }}'}
  read: {kind: Csv}
"""
ACCOUNT = "{$schema: Account, headers: {name: %s}, spec: {email: carol@example.org, password: %s}}"


def edge(value: str = "reader", target: str = "Dataset:x", subject: str = "Account:bob") -> str:
    return f"{{subject: '{subject}', relation: role, value: {value}, object: '{target}'}}"


def attribute(name: str, value: str = "true", target: str = "Dataset:x") -> str:
    return f"{{object: '{target}', name: {name}, value: {value}}}"


def relations(*edges: str, name: str = "shares", attributes: tuple[str, ...] = ()) -> str:
    lists = f"relations: [{', '.join(edges)}], attributes: [{', '.join(attributes)}]"
    return f"{{$schema: Relations, headers: {{name: {name}}}, spec: {{{lists}}}}}"


@pytest.fixture
def resources() -> Resources:
    resources = Resources(
        store=SqlResourceStore.open(None),
        clock=SYSTEM_CLOCK,
        pre_apply=lambda: PreApply(load_keys=lambda: KEYS),
        controlled=frozenset(str(kind.uri) for kind in CORE_TYPES),
        is_multi_tenant=True,
    )
    for subject in (ALICE, BOB):
        apply(resources, subject)  # their accounts become known
    return resources


def apply(resources: Resources, subject: Subject, *texts: str) -> tuple[Outcome, ...]:
    written = written_resources("\n---\n".join(texts).encode()) if texts else ()
    return resources.apply(subject, Batch(written=written))


def refusal(run: Callable[[], object]) -> Problem:
    with pytest.raises(InvalidManifests) as refused:
        run()
    return refused.value.problems[0]


def grants(resources: Resources) -> list[tuple[str, str, str]]:
    with resources.store.read() as snapshot:
        return [(one.account, one.right, one.by) for one in dataset_grants(snapshot)]


def remove(resources: Resources, subject: Subject, kind: str, name: str) -> None:
    found = resources.delete(subject, ResourceRef(type=kind, ref=name))
    attempts = Attempts(store=resources.store, clock=SYSTEM_CLOCK)
    begun = begin(attempts, found.id)
    assert begun is not None
    end(attempts, begun)


@pytest.mark.parametrize(
    ("manifest", "path", "words"),
    [
        (relations(edge("owner")), "spec.relations[0].value", "reader, editor, maintainer"),
        (relations(edge("reader", "SecretSet:keys")), "spec.relations[0].value", "user"),
        (relations(edge().replace("role", "rolle")), "spec.relations[0].relation", "role"),
        (relations(edge(subject="Dataset:x")), "spec.relations[0].subject", "Account"),
        (relations(edge(target="Flow:x")), "spec.relations[0].object", "no role on a Flow"),
        (relations(edge(target="Account:bob")), "spec.relations[0].object", "no role on a Account"),
        (relations(attributes=(attribute("isAdmin"),)), "spec.attributes[0].name", "allowPublicRead"),
        (relations(attributes=(attribute("allowPublicRead", "'yes'"),)), "spec.attributes[0].value", "true"),
        (relations(attributes=(attribute("allowAnonymousRead"),)), "spec.attributes[0]", "allowPublicRead"),
        (
            relations(attributes=(attribute("allowPublicRead", target="Source:x"),)),
            "spec.attributes[0].object",
            "Dataset",
        ),
    ],
)
def test_what_no_policy_knows_is_refused_with_the_words_that_exist(
    resources: Resources, manifest: str, path: str, words: str
) -> None:
    problem = refusal(lambda: apply(resources, ALICE, manifest))
    assert (problem.path, words in problem.message) == (path, True), problem


@pytest.mark.parametrize("target", ["Dataset:alice/x", "Dataset:alice/nothing", "Dataset:nobody/x"])
def test_only_the_owner_gives_rights_and_nothing_is_told_of_what_exists(
    resources: Resources, target: str
) -> None:
    (dataset,) = apply(resources, ALICE, DATASET % "x")
    problem = refusal(lambda: apply(resources, BOB, relations(edge("maintainer", target))))
    assert (problem.code, "does not own" in problem.message) == ("NotGrantable", True)
    by_did = relations(edge(target=f"Dataset:{dataset.resource.did}"))
    assert refusal(lambda: apply(resources, BOB, by_did)).code == "NotGrantable"
    by_id = relations(edge(target=f"Dataset:{dataset.resource.id}"))
    assert refusal(lambda: apply(resources, BOB, by_id)).code == "UnknownId"
    assert not grants(resources)


def test_a_grant_in_the_account_of_another_is_forbidden(resources: Resources) -> None:
    apply(resources, ALICE, DATASET % "x")
    foreign = relations(edge()).replace("name: shares", "name: shares, account: alice")
    assert refusal(lambda: apply(resources, BOB, foreign)).code == "Forbidden"


def test_all_relations_count_together_and_end_with_their_resources(resources: Resources) -> None:
    apply(resources, ALICE, DATASET % "x", relations(edge("reader")))
    apply(resources, NODE, relations(edge("editor", "Dataset:alice/x"), name="more"))
    both = (attribute("allowPublicRead"), attribute("allowAnonymousRead"))
    apply(resources, ALICE, relations(name="open", attributes=both))
    assert grants(resources) == [
        ("", "allowAnonymousRead", "alice/open"),
        ("", "allowPublicRead", "alice/open"),
        (BOB.did, "editor", "odf/more"),
        (BOB.did, "reader", "alice/shares"),
    ]
    apply(resources, ALICE, relations(name="open", attributes=(attribute("allowPublicRead", "false"),)))
    apply(resources, ALICE, relations())
    assert grants(resources) == [(BOB.did, "editor", "odf/more")]
    resources.delete(NODE, ResourceRef(type="Relations", ref="more"))
    assert grants(resources) == []  # before any controller has run


def test_an_edge_without_its_account_or_dataset_gives_nothing_until_both_exist(resources: Resources) -> None:
    (outcome,) = apply(resources, ALICE, relations(edge(subject="Account:carol")))
    assert [one.code for one in outcome.warnings] == ["UnresolvedReference"] * 2
    controller = RelationsController(store=resources.store)
    with pytest.raises(DependencyMissing, match="carol does not exist"):
        controller.reconcile(dict(outcome.resource.document))
    apply(resources, ALICE, DATASET % "x")
    carol = Subject(did=f"did:odf:fed01{'c' * 64}", name="carol", is_admin=False)
    assert grants(resources) == []
    apply(resources, carol)
    assert grants(resources) == [(carol.did, "reader", "alice/shares")]
    stored = resources.get(ALICE, ResourceRef(type="Relations", ref="shares"))
    assert controller.reconcile(dict(stored.document)) == {}


def test_a_dataset_that_is_created_again_inherits_no_edge(resources: Resources) -> None:
    (dataset, _) = apply(resources, ALICE, DATASET % "x", relations(edge()))
    assert grants(resources)
    remove(resources, ALICE, "Dataset", dataset.resource.id)
    assert grants(resources) == []
    apply(resources, ALICE, DATASET % "x")
    assert grants(resources) == []


def test_a_foreign_edge_that_was_stored_before_is_never_in_effect(resources: Resources) -> None:
    """Also if an edge has got past apply: who owns the object is decided where it is used."""
    (own, shares) = apply(resources, ALICE, DATASET % "x", relations(edge()))
    stolen = {**shares.resource.document, "headers": {**shares.resource.document["headers"]}}
    bob = resources.get(NODE, ResourceRef(type="Account", ref="bob"))
    stolen["headers"]["account"] = bob.document["headers"]["account"]
    with resources.store.transaction() as transaction:
        found = transaction.by_id(shares.resource.id)
        assert found is not None
        transaction.rewrite(replace(found, document=stolen))
    assert own.resource.did
    assert grants(resources) == []


def test_a_secret_set_of_another_is_missing_without_the_role_user(resources: Resources) -> None:
    (keys,) = apply(resources, ALICE, SECRETS)
    wanted = ResourceRef(type="SecretSet", ref=keys.resource.id)

    def config() -> dict[str, Any]:
        stored = resources.get(BOB, ResourceRef(type="Source", ref="orders"))
        found: dict[str, Any] = stored.document["spec"]["config"]["token"]
        return found

    (source,) = apply(resources, BOB, SOURCE)
    missing = SOURCE.replace("keys", "none").replace("orders", "others")
    (other,) = apply(resources, BOB, missing)
    assert [one.message.replace("none", "keys") for one in other.warnings] == [
        one.message for one in source.warnings
    ]
    with pytest.raises(OdfError, match="does not exist"):
        resources.use(BOB, wanted)
    apply(resources, ALICE, SECRETS.replace("swordfish", "trout"))  # a change does not bind it either
    assert "id" not in config()
    apply(resources, ALICE, relations(edge("user", "SecretSet:keys")))
    assert config()["id"] == keys.resource.id  # what waited is bound by the grant
    assert resources.use(BOB, wanted).id == keys.resource.id
    with pytest.raises(OdfError, match="does not exist"):
        resources.get(BOB, wanted)  # to use is not to read
    apply(resources, ALICE, relations())
    with pytest.raises(OdfError, match="does not exist"):
        resources.use(BOB, wanted)
    (again,) = apply(resources, BOB, SOURCE)
    assert [one.code for one in again.warnings] == ["UnresolvedReference"]


def test_rights_are_streamed_at_first_and_after_each_change(resources: Resources) -> None:
    watch = Watch(resources.store)
    resources.changed.append(watch.notify)
    apply(resources, ALICE, DATASET % "x")
    stream = (one for one in watch_grants(resources.store, watch, lambda: True) if one is not None)
    assert next(stream) == ()
    apply(resources, ALICE, relations(edge()))
    assert [one.right for one in next(stream)] == ["reader"]
    resources.delete(ALICE, ResourceRef(type="Relations", ref="shares"))
    assert list(islice(stream, 1)) == [()]


def test_an_account_is_applied_by_administrators_and_its_password_is_stored_as_a_hash(
    resources: Resources,
) -> None:
    assert refusal(lambda: apply(resources, ALICE, ACCOUNT % ("carol", "correct-horse"))).code == "Forbidden"
    assert refusal(lambda: apply(resources, ALICE, ACCOUNT % ("alice", "correct-horse"))).code == "Forbidden"
    (created,) = apply(resources, NODE, ACCOUNT % ("carol", "correct-horse"))
    spec = created.resource.document["spec"]
    assert spec["did"].startswith("did:odf:")
    assert spec["password"]["value"].startswith("$argon2id$")
    (again,) = apply(resources, NODE, ACCOUNT % ("carol", "correct-horse"))
    (changed,) = apply(resources, NODE, ACCOUNT % ("carol", "battery-staple"))
    assert (again.outcome, changed.outcome) == ("unchanged", "updated")
    assert changed.resource.document["spec"]["did"] == spec["did"]


@pytest.mark.parametrize(
    ("headers", "code"),
    [("odf", "SchemaViolation"), ("auth", "ReservedName"), ("carol-2, id: %s", "ImmutableField")],
)
def test_an_account_keeps_its_name_and_names_of_the_node_are_refused(
    resources: Resources, headers: str, code: str
) -> None:
    (carol,) = apply(resources, NODE, ACCOUNT % ("carol", "correct-horse"))
    named = headers.replace("%s", carol.resource.id)
    assert refusal(lambda: apply(resources, NODE, ACCOUNT % (named, "correct-horse"))).code == code
    with pytest.raises(OdfError, match="keeps its name"):
        resources.rename(NODE, ResourceRef(type="Account", ref="carol"), "dora")


@pytest.mark.parametrize(
    "did", [ALICE.did, NODE_DID, "did:pkh:eip155:1:0xb9c5714089478a327f09197987f16f9e5d936e8a"]
)
def test_a_new_account_takes_no_did_of_another(resources: Resources, did: str) -> None:
    manifest = f"{{$schema: Account, headers: {{name: dora}}, spec: {{email: d@example.org, did: '{did}'}}}}"
    assert refusal(lambda: apply(resources, NODE, manifest)).path == "spec.did"


def test_an_account_that_owns_something_is_not_deleted(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ResourceRef(type="Account", ref="alice")
    with pytest.raises(OdfError, match="only administrators"):
        resources.delete(ALICE, wanted)
    apply(resources, ALICE, SECRETS)
    with pytest.raises(OdfError, match="owns SecretSet:keys"):
        resources.delete(NODE, wanted, is_forced=True)
    remove(resources, ALICE, "SecretSet", "keys")
    owner: Callable[[Name], str | None] = lambda name: f"{name}/x"  # noqa: E731
    monkeypatch.setattr(resources.datasets, "any_of", owner)
    with pytest.raises(OdfError, match="owns alice/x"):
        resources.delete(NODE, wanted)
    monkeypatch.undo()
    assert resources.delete(NODE, wanted).deleted_ms is not None
    with pytest.raises(OdfError, match="the node itself"):
        resources.delete(NODE, ResourceRef(type="Account", ref=NODE_DID))


def test_an_account_of_a_command_is_implied_until_a_manifest_describes_it(resources: Resources) -> None:
    assert is_implied(resources.get(NODE, ResourceRef(type="Account", ref="bob")).document)
    (described,) = apply(resources, NODE, ACCOUNT % ("bob", "correct-horse"))
    assert (described.outcome, described.resource.did) == ("updated", BOB.did)
    assert not is_implied(described.resource.document)
