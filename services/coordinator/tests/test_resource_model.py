"""Random sequences of operations on resources, compared with what they have to mean."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st
from odf_testing.profiles import examples
from odf_testing.resource_node import begin, end

from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.errors import OdfError
from odf_common.resources.failures import FailureClass
from odf_common.resources.registry import CORE_TYPES
from odf_common.resources.resource_manifests import written_resources
from odf_common.resources.scalar_formats import ResourceId
from odf_common.resources.secret_keys import SecretKeys
from odf_coordinator.resources.attempts import Attempts
from odf_coordinator.resources.callers import Subject
from odf_coordinator.resources.documents import input_view
from odf_coordinator.resources.pre_apply import PreApply
from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.store import Query, StoredResource
from odf_coordinator.resources.use_cases import Batch, ResourceRef, Resources

KEYS: Final = SecretKeys.new()
NODE: Final = Subject()
NAMES: Final = ("a", "b", "c")
SECRETS: Final = "{$schema: SecretSet, headers: {name: %s}, spec: {secrets: {pw: '%s'}}}"
SOURCE: Final = """
{$schema: Source, headers: {name: %s}, spec: {config: {t: 'SecretSet:%s#pw'}, read: {kind: Csv},
ingress: {kind: Url, url: 'https://a.example/$[{config.t}]'}}}
"""


def node() -> Resources:
    return Resources(
        store=SqlResourceStore.open(None),
        clock=SYSTEM_CLOCK,
        pre_apply=lambda: PreApply(load_keys=lambda: KEYS),
        controlled=frozenset(str(kind.uri) for kind in CORE_TYPES),
    )


def apply(resources: Resources, texts: Sequence[str]) -> list[str]:
    written = written_resources("\n---\n".join(texts).encode())
    return [one.outcome for one in resources.apply(NODE, Batch(written=written))]


def stored(resources: Resources) -> dict[ResourceId, StoredResource]:
    with resources.store.read() as snapshot:
        return {one.id: one for one in snapshot.find(Query(include_deleted=True)).resources}


@dataclass
class Checked:
    """A node, with what it had after the last step."""

    resources: Resources = field(default_factory=node)
    before: dict[ResourceId, StoredResource] = field(default_factory=dict)
    gone: set[ResourceId] = field(default_factory=set)

    def check(self) -> None:
        """Check what holds after each step, whatever it was."""
        now = stored(self.resources)
        assert not self.gone & now.keys(), "an id was used again"
        self.gone |= self.before.keys() - now.keys()
        for id_, one in now.items():
            former = self.before.get(id_)
            assert one.generation - (0 if former is None else former.generation) in (
                {1} if former is None else {0, 1}
            )
            assert one.document["status"].get("observedGeneration", 0) <= one.generation
            if former is not None:
                self._check_references(former, one, now)
        self.before = now

    def _check_references(
        self, former: StoredResource, one: StoredResource, now: dict[ResourceId, StoredResource]
    ) -> None:
        """Check that a reference means what it meant, unless its manifest was applied after its target was gone."""
        old, new = (it.document["spec"].get("config", {}).get("t", {}).get("id") for it in (former, one))
        if old is not None and old != new:
            assert one.generation == former.generation + 1
            is_same_name = (
                former.document["spec"]["config"]["t"]["name"] == one.document["spec"]["config"]["t"]["name"]
            )
            target = now.get(old)
            assert not is_same_name or target is None or target.deleted_ms is not None

    def attempt(self, number: int, failure: str) -> None:
        """Run an attempt at a resource; its failure changes no generation."""
        if not self.before:
            return
        one = sorted(self.before.values(), key=lambda it: it.id)[number % len(self.before)]
        attempts = Attempts(store=self.resources.store, clock=SYSTEM_CLOCK)
        begun = begin(attempts, one.id)
        if begun is not None:
            end(attempts, begun, failure=failure, failure_class=FailureClass.TRANSIENT)

    def step(self, kind: str, name: str, other: str, number: int) -> None:
        """Do one step; what the node refuses changes nothing."""
        texts = [SECRETS % (name, number % 3), SOURCE % (other, name)]
        before = stored(self.resources)
        try:
            match kind:
                case "apply":
                    apply(self.resources, texts)
                    assert set(apply(self.resources, texts)) == {"unchanged"}
                case "rename":
                    self.resources.rename(NODE, ResourceRef(type="SecretSet", ref=name), other)
                case "delete":
                    found = self.resources.delete(
                        NODE, ResourceRef(type="SecretSet", ref=name), is_forced=True
                    )
                    assert found.deleted_ms is not None
                case "attempt":
                    self.attempt(number, "")
                case _:
                    self.attempt(number, "unavailable")
        except OdfError:
            assert stored(self.resources) == before
        self.check()


steps = st.tuples(
    st.sampled_from(("apply", "apply", "rename", "delete", "attempt", "attempt", "fail")),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.integers(0, 9),
)


@settings(max_examples=examples(40))
@given(st.lists(steps, max_size=15))
def test_ids_generations_and_references_hold_after_any_sequence(
    plan: list[tuple[str, str, str, int]],
) -> None:
    checked = Checked()
    for step in plan:
        checked.step(*step)
    types = checked.resources.types()
    alive = {id_: one for id_, one in checked.before.items() if one.deleted_ms is None and one.name != "odf"}
    if not alive:
        return
    exported = [str(input_view(types.of_schema(one.schema), one.document)) for one in alive.values()]
    outcomes = apply(checked.resources, exported)
    for one, outcome in zip(alive.values(), outcomes, strict=True):
        target = one.document["spec"].get("config", {}).get("t", {}).get("id")
        # An apply binds the name anew if what it meant is gone.
        assert outcome == "unchanged" or not (target is None or target in alive), one.name


@settings(max_examples=examples(40))
@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), min_size=1, unique_by=lambda it: it[0]
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_documents_does_not_matter(pairs: list[tuple[str, str]], random: Random) -> None:
    texts = [SECRETS % (name, name) for name in NAMES[:2]] + [SOURCE % pair for pair in pairs]
    one, other = node(), node()
    apply(one, texts)
    shuffled = [*texts]
    random.shuffle(shuffled)
    apply(other, shuffled)
    assert meaning(one) == meaning(other)


def meaning(resources: Resources) -> object:
    """Return all resources with names in place of ids."""
    found = stored(resources)
    names = {id_: one.name for id_, one in found.items()}
    return sorted(
        (
            one.schema,
            one.name,
            one.generation,
            one.phase,
            {
                key: names.get(handle.get("id"), "")
                for key, handle in one.document["spec"].get("config", {}).items()
            }.__repr__(),
        )
        for one in found.values()
    )
