"""Operations on resources over a store in memory: apply, names, references, secrets, deletion."""

from collections.abc import Callable
from typing import Any

import pytest
from odf_testing.resource_node import begin, end

from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.errors import OdfError
from odf_common.resources.failures import FailureClass
from odf_common.resources.registry import CORE_TYPES
from odf_common.resources.resource_manifests import InvalidManifests, written_resources
from odf_common.resources.secret_keys import SecretKeys
from odf_coordinator.resources.apply import Options
from odf_coordinator.resources.attempts import AttemptEnd, Attempts
from odf_coordinator.resources.callers import Subject, new_id
from odf_coordinator.resources.changes import Outcome
from odf_coordinator.resources.documents import input_view
from odf_coordinator.resources.pre_apply import PreApply
from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.store import EventKind, FencingToken, NameConflict, StoredResource
from odf_coordinator.resources.use_cases import Batch, ResourceRef, Resources

NODE = Subject()
KEYS = SecretKeys.new()
VARIABLES = "{$schema: VariableSet, headers: {name: %s}, spec: {variables: {a: '%s'}}}"
SOURCE = """
$schema: Source
headers: {name: orders}
spec:
  config: {token: 'SecretSet:keys#pw'}
  ingress: {kind: Url, url: 'http://localhost/orders.csv?token=${{ config.token }}'}
  read: {kind: Csv}
"""
SECRETS = "{$schema: SecretSet, headers: {name: keys}, spec: {secrets: {pw: swordfish}}}"


@pytest.fixture
def resources() -> Resources:
    return Resources(
        store=SqlResourceStore.open(None),
        clock=SYSTEM_CLOCK,
        pre_apply=lambda: PreApply(load_keys=lambda: KEYS),
        controlled=frozenset(str(kind.uri) for kind in CORE_TYPES),
    )


def apply(resources: Resources, *texts: str, **options: Any) -> tuple[Outcome, ...]:
    written = written_resources("\n---\n".join(texts).encode())
    return resources.apply(NODE, Batch(written=written, options=Options(**options)))


def codes(run: Callable[[], object]) -> list[str]:
    with pytest.raises(InvalidManifests) as refused:
        run()
    return [problem.code for problem in refused.value.problems]


def get(resources: Resources, kind: str, ref: str) -> StoredResource:
    return resources.get(NODE, ResourceRef(type=kind, ref=ref))


def reconcile(resources: Resources, kind: str, name: str) -> None:
    attempts = Attempts(store=resources.store, clock=SYSTEM_CLOCK)
    begun = begin(attempts, get(resources, kind, name).id)
    assert begun is not None
    end(attempts, begun)


def test_applying_twice_is_applying_once(resources: Resources) -> None:
    (first,) = apply(resources, VARIABLES % ("env", "1"))
    before = get(resources, "VariableSet", "env")
    (again,) = apply(resources, VARIABLES % ("env", "1"))
    assert (first.outcome, again.outcome) == ("created", "unchanged")
    assert get(resources, "VariableSet", "env") == before


def test_a_changed_value_is_another_generation_and_pending(resources: Resources) -> None:
    apply(resources, VARIABLES % ("env", "1"))
    reconcile(resources, "VariableSet", "env")
    assert get(resources, "VariableSet", "env").phase == "Ready"
    (changed,) = apply(resources, VARIABLES % ("env", "2"))
    found = get(resources, "VariableSet", "env")
    assert (changed.outcome, found.generation, found.phase) == ("updated", 2, "Pending")
    assert [(change.path, change.before, change.after) for change in changed.diff] == [
        ("spec.variables.a", "1", "2")
    ]


def test_nothing_of_a_batch_with_an_error_is_stored(resources: Resources) -> None:
    refused = codes(lambda: apply(resources, VARIABLES % ("good", "1"), VARIABLES % ("a_b", "1")))
    assert refused == ["InvalidName"]
    with pytest.raises(OdfError, match="good does not exist"):
        get(resources, "VariableSet", "good")


def test_two_resources_swap_their_names_in_one_batch(resources: Resources) -> None:
    one, two = apply(resources, VARIABLES % ("one", "1"), VARIABLES % ("two", "2"))
    swapped = apply(
        resources,
        VARIABLES % (f"two, id: {one.resource.id}", "1"),
        VARIABLES % (f"one, id: {two.resource.id}", "2"),
    )
    assert [outcome.outcome for outcome in swapped] == ["renamed", "renamed"]
    assert get(resources, "VariableSet", "two").id == one.resource.id


def test_a_name_that_another_resource_keeps_is_refused_by_its_words(resources: Resources) -> None:
    one, _ = apply(resources, VARIABLES % ("one", "1"), VARIABLES % ("two", "2"))
    with pytest.raises(InvalidManifests) as refused:
        apply(resources, VARIABLES % (f"TWO, id: {one.resource.id}", "1"))
    (problem,) = refused.value.problems
    said = "VariableSet two exists already in the account odf"
    assert (problem.code, problem.message) == ("NameConflict", said)
    with pytest.raises(NameConflict, match=said):
        resources.rename(NODE, ResourceRef(type="VariableSet", ref="one"), "two")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ("x, id: 0b9c1a52-5f0e-4d53-9a3e-6f1b2b7a9d10", "ResourceNotFound"),
        ("x, account: nobody", "ResourceNotFound"),
    ],
)
def test_what_a_manifest_names_has_to_exist(resources: Resources, headers: str, code: str) -> None:
    assert codes(lambda: apply(resources, VARIABLES % (headers, "1"))) == [code]


def test_two_manifests_of_one_resource_are_refused(resources: Resources) -> None:
    batch = VARIABLES % ("env", "1"), VARIABLES % ("ENV", "2")
    assert codes(lambda: apply(resources, *batch)) == ["DuplicateInBatch"]


def test_a_secret_is_stored_encrypted_and_unchanged_when_it_is_applied_again(resources: Resources) -> None:
    apply(resources, SECRETS)
    stored = get(resources, "SecretSet", "keys")
    secret = stored.document["spec"]["secrets"]["pw"]
    assert (secret["contentEncoding"], secret["value"].count(".")) == ("jwe", 4)
    exported = input_view(resources.types().of_schema("SecretSet"), stored.document)
    (again,) = apply(resources, SECRETS)
    (copied,) = resources.apply(NODE, Batch(written=written_resources(str(exported).encode())))
    assert (again.outcome, copied.outcome) == ("unchanged", "unchanged")
    exported["headers"] = {"name": "other"}
    written = written_resources(str(exported).encode())
    assert codes(lambda: resources.apply(NODE, Batch(written=written))) == ["InvalidJwe"]


def test_a_reference_waits_for_its_target_and_is_pinned_without_a_generation(resources: Resources) -> None:
    (source,) = apply(resources, SOURCE)
    assert [warning.code for warning in source.warnings] == ["UnresolvedReference"]
    (secrets,) = apply(resources, SECRETS)
    found = get(resources, "Source", "orders")
    assert found.document["spec"]["config"]["token"]["id"] == secrets.resource.id
    assert found.generation == 1
    kinds = [event.kind for event in resources.history(NODE, ResourceRef(type="Source", ref="orders"))]
    assert kinds == [EventKind.CREATED, EventKind.REFERENCE_PINNED]


def test_a_batch_is_ordered_by_its_references(resources: Resources) -> None:
    outcomes = apply(resources, SOURCE, SECRETS)
    assert [one.type.short_name for one in outcomes] == ["SecretSet", "Source"]
    assert not outcomes[1].warnings


def test_two_derivatives_that_read_each_other_are_refused(resources: Resources) -> None:
    dataset = (
        "{$schema: Dataset, headers: {name: %s}, spec: {kind: Derivative, metadata: [{kind: SetTransform, "
        "inputs: [{datasetRef: %s}], transform: {kind: Sql, engine: spark, query: 'SELECT 1'}}]}}"
    )
    refused = codes(lambda: apply(resources, dataset % ("a", "b"), dataset % ("b", "a")))
    assert refused == ["ReferenceCycle"]


def test_a_dry_run_stores_nothing(resources: Resources) -> None:
    written = written_resources((VARIABLES % ("env", "1")).encode())
    (outcome,) = resources.dry_run(NODE, Batch(written=written))
    assert outcome.outcome == "created"
    with pytest.raises(OdfError, match="env does not exist"):
        get(resources, "VariableSet", "env")


def test_a_deleted_resource_is_gone_after_its_controller_and_its_name_is_free(resources: Resources) -> None:
    (first,) = apply(resources, VARIABLES % ("env", "1"))
    wanted = ResourceRef(type="VariableSet", ref="env")
    resources.delete(NODE, wanted)
    assert codes(lambda: apply(resources, VARIABLES % ("env", "1"))) == ["BeingDeleted"]
    attempts = Attempts(store=resources.store, clock=SYSTEM_CLOCK)
    begun = begin(attempts, first.resource.id)
    assert begun is not None
    end(attempts, begun)
    (second,) = apply(resources, VARIABLES % ("env", "1"))
    assert second.outcome == "created"
    assert second.resource.id != first.resource.id


def test_a_deletion_during_an_attempt_is_cleaned_up_by_the_next_one(resources: Resources) -> None:
    (made,) = apply(resources, VARIABLES % ("env", "1"))
    attempts = Attempts(store=resources.store, clock=SYSTEM_CLOCK)
    begun = begin(attempts, made.resource.id)
    resources.delete(NODE, ResourceRef(type="VariableSet", ref="env"))
    assert begun is not None
    assert end(attempts, begun) == 0
    cleaning = begin(attempts, made.resource.id)
    assert cleaning is not None
    assert cleaning.is_deleting
    end(attempts, cleaning)
    assert begin(attempts, made.resource.id) is None


def test_attempts_of_a_batch_begin_and_end_together(resources: Resources) -> None:
    made = apply(resources, *(VARIABLES % (f"env-{n}", "1") for n in range(3)))
    ids = [one.resource.id for one in made]
    attempts = Attempts(store=resources.store, clock=SYSTEM_CLOCK)
    assert begin(attempts, ids[0], ttl_ms=0) is not None
    held = begin(attempts, ids[1])
    begun, others = attempts.begin([*ids, new_id()], "test", ttl_ms=60_000)
    assert ({one.resource.id for one in begun}, others) == ({ids[0], ids[2]}, [ids[1]])
    ends = {one.resource.id: AttemptEnd(token=one.token, generation=1) for one in begun}
    ends[ids[2]] = AttemptEnd(token=FencingToken(7), generation=1)  # of a lease that was lost
    assert attempts.end(ends) == {}
    assert held is not None
    assert end(attempts, held, failure="unavailable", failure_class=FailureClass.TRANSIENT) is not None
    phases = [get(resources, "VariableSet", one).phase for one in ids]
    assert phases == ["Ready", "Failed", "Reconciling"]


def test_an_account_sees_its_own_resources_only(resources: Resources) -> None:
    apply(resources, VARIABLES % ("env", "1"))
    stranger = Subject(did="did:odf:fed01" + "0" * 64, name="Bob", is_admin=False)
    foreign = get(resources, "VariableSet", "env")
    assert not resources.may_read(stranger, foreign)
    assert not resources.may_read(stranger, None)
    assert resources.may_read(NODE, None)
    with pytest.raises(OdfError, match="does not exist"):
        resources.get(stranger, ResourceRef(type="VariableSet", ref=foreign.id))
    written = written_resources((VARIABLES % ("env, account: odf", "2")).encode())
    assert codes(lambda: resources.apply(stranger, Batch(written=written))) == ["Forbidden"]
    (own,) = resources.apply(stranger, Batch(written=written_resources((VARIABLES % ("env", "2")).encode())))
    assert own.resource.document["headers"]["account"]["name"] == "Bob"
    assert resources.may_read(stranger, own.resource)


@pytest.mark.parametrize(
    ("url", "config", "found"),
    [
        ("http://h/${{ config.token }}", "{token: 'SecretSet:keys#pw'}", ["UnresolvedReference"]),
        ("http://h/", "{token: 'SecretSet:keys#pw'}", ["UnresolvedReference", "UnusedConfig"]),
    ],
)
def test_values_that_no_template_uses_are_told(
    resources: Resources, url: str, config: str, found: list[str]
) -> None:
    (outcome,) = apply(resources, a_source(url, config))
    assert [warning.code for warning in outcome.warnings] == found


@pytest.mark.parametrize("name", ["config.other", "env.KEY", "config.token ||"])
def test_a_template_without_a_value_is_refused_when_it_is_applied(resources: Resources, name: str) -> None:
    manifest = a_source(f"http://h/${{{{ {name} }}}}", "{token: 'SecretSet:keys#pw'}")
    with pytest.raises(InvalidManifests) as refused:
        apply(resources, manifest)
    assert [problem.path[:12] for problem in refused.value.problems] == ["spec.ingress"]


def refusal_of(run: Callable[[], object]) -> str:
    with pytest.raises(OdfError) as refused:
        run()
    return f"{refused.value}; {refused.value.advice()}"


def test_a_history_names_the_accounts_and_controllers_that_caused_it(resources: Resources) -> None:
    bob = Subject(did="did:odf:fed01" + "0" * 64, name="Bob", is_admin=False)
    resources.apply(bob, Batch(written=written_resources((VARIABLES % ("env", "1")).encode())))
    wanted = ResourceRef(type="VariableSet", ref="env", account="Bob")
    attempts = Attempts(store=resources.store, clock=SYSTEM_CLOCK)
    begin(attempts, resources.get(NODE, wanted).id, holder="coordinator@here")
    assert [event.subject for event in resources.history(NODE, wanted)] == ["Bob", "coordinator@here"]


@pytest.mark.parametrize(
    ("kind", "ref", "said"),
    [
        ("VariableSet", "enf", "VariableSet enf does not exist; did you mean env?"),
        (
            "VariableSet",
            "x",
            "VariableSet x does not exist; `odf get VariableSet` prints those that you may see",
        ),
        (
            "SecretSet",
            "env",
            "SecretSet env does not exist; `odf get SecretSet` prints those that you may see",
        ),
        ("VariablesSet", "env", "type: unknown type 'VariablesSet'; did you mean VariableSet?"),
        ("variable_set", "env", "type: unknown type 'variable_set'; did you mean VariableSet?"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_nearest_name(
    resources: Resources, kind: str, ref: str, said: str
) -> None:
    apply(resources, VARIABLES % ("env", "1"))
    assert refusal_of(lambda: get(resources, kind, ref)) == said


def test_a_stranger_is_not_told_names_that_it_may_not_see(resources: Resources) -> None:
    apply(resources, VARIABLES % ("env", "1"))
    stranger = Subject(did="did:odf:fed01" + "0" * 64, name="Bob", is_admin=False)
    wanted = ResourceRef(type="VariableSet", ref="enf")
    assert "did you mean" not in refusal_of(lambda: resources.get(stranger, wanted))


@pytest.mark.parametrize(
    ("target", "triggers", "path"),
    [
        ("{type: Dataset, account: '%'}", "", "spec.target"),
        ("'Dataset:%/x'", "", "spec.target"),
        ("'Dataset:x'", "{kind: Dataset, dataset: '%/x'}", "spec.triggers[0].dataset"),
    ],
)
def test_only_administrators_select_resources_of_all_accounts(
    resources: Resources, target: str, triggers: str, path: str
) -> None:
    bob = Subject(did="did:odf:fed01" + "0" * 64, name="Bob", is_admin=False)
    manifest = (
        f"{{$schema: Flow, headers: {{name: f}}, spec: {{target: {target}, triggers: [{triggers}], "
        "tasks: [{kind: Ext, $schema: https://node.odf.example/schemas/flow/v1alpha1/Verify}]}}"
    )
    batch = Batch(written=written_resources(manifest.encode()))
    with pytest.raises(InvalidManifests) as refused:
        resources.apply(bob, batch)
    assert [(one.path, one.code) for one in refused.value.problems] == [(path, "Forbidden")]
    assert resources.apply(NODE, batch)


def a_source(url: str, config: str) -> str:
    ingress = f"{{kind: Url, url: '{url}'}}"
    return f"{{$schema: Source, headers: {{name: x}}, spec: {{config: {config}, ingress: {ingress}, read: {{kind: Csv}}}}}}"
