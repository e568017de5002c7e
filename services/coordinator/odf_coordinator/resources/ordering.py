"""The order in which manifests of a batch depend on each other; cycles are refused."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from odf_common.errors import InvalidInput
from odf_common.resources.references import AccountHandle
from odf_common.resources.registry import DATASET, ResourceType, Types
from odf_common.resources.resource_manifests import InvalidManifests
from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.resources import documents
from odf_coordinator.resources.draft import ManifestDraft, problem_of
from odf_coordinator.resources.lookups import Lookups, account_of, dataset_alias, dataset_named, input_alias
from odf_coordinator.resources.resolution import dataset_inputs


class ReferenceCycle(InvalidInput):
    """References lead back to where they started."""


def in_order(drafts: Sequence[ManifestDraft], state: Lookups, types: Types) -> list[ManifestDraft]:
    """Return drafts so that each comes after those it refers to; raises `InvalidManifests` for a cycle."""
    edges = _Edges(drafts, state, types)
    ordered: list[ManifestDraft] = []
    done: set[str] = set()
    for draft in drafts:
        _visit(draft.id, edges, [], done, ordered)
    return ordered


def _visit(
    node: ResourceId, edges: "_Edges", path: list[ResourceId], done: set[str], ordered: list[ManifestDraft]
) -> None:
    """Walk depth first, on a stack of our own: a chain of references may be long."""
    stack: list[tuple[ResourceId, Iterable[ResourceId]]] = [(node, iter(edges.targets(node)))]
    entered = [node]
    while stack:
        current, targets = stack[-1]
        following = next((target for target in targets if target not in done), None)
        if following is None:
            stack.pop()
            entered.pop()
            if current not in done:
                done.add(current)
                ordered.extend(edges.drafts(current))
        elif following in entered:
            edges.refuse_cycle([*entered[entered.index(following) :], following])
        else:
            stack.append((following, iter(edges.targets(following))))
            entered.append(following)


class _Edges:
    """References among resources of the batch, and of the store as far as they can close a cycle."""

    def __init__(self, drafts: Sequence[ManifestDraft], state: Lookups, types: Types) -> None:
        self._drafts = {draft.id: draft for draft in drafts}
        self._state, self._types = state, types
        datasets = [draft for draft in drafts if draft.manifest.type is DATASET]
        self._by_alias = {
            key: draft
            for draft in datasets
            for key in (dataset_alias(draft.owner.name, draft.manifest.name.key).lower(), draft.did)
        }

    def drafts(self, node: ResourceId) -> list[ManifestDraft]:
        """Return the draft of a resource, if it is in the batch."""
        return [self._drafts[node]] if node in self._drafts else []

    def targets(self, node: ResourceId) -> list[ResourceId]:
        """Return the resources that one refers to, in the order of its references."""
        draft = self._drafts.get(node)
        if draft is None:
            found = [ResourceId(ref.id) for ref in self._state.references_from(node) if ref.id is not None]
            return found + self._stored_inputs(node)
        kind, spec = draft.manifest.type, draft.spec
        references = [] if kind.spec is None else documents.references_in(kind.spec, spec).values()
        targets = [plain["id"] for _, plain in references if isinstance(plain, Mapping) and "id" in plain]
        targets += self._inputs(kind, spec, draft.owner)
        if draft.owner.id != node and draft.owner.id in self._drafts:
            targets.insert(0, draft.owner.id)
        return [ResourceId(target) for target in targets]

    def _stored_inputs(self, node: ResourceId) -> list[ResourceId]:
        stored = self._state.by_id(node)
        if stored is None:
            return []
        kind = self._types.of_schema(stored.schema)
        return self._inputs(kind, stored.document["spec"], account_of(stored))

    def _inputs(self, kind: ResourceType, spec: Mapping[str, Any], owner: AccountHandle) -> list[ResourceId]:
        """Return the resources of the datasets that a query reads: those of the batch, else those of the store."""
        found = []
        for _, text in dataset_inputs(kind, spec):
            alias = input_alias(text, owner.name)
            drafted = self._by_alias.get(alias.lower())
            target = None if drafted is not None else dataset_named(self._state, alias)
            if drafted is not None:
                found.append(drafted.id)
            elif target is not None:
                found.append(target.id)
        return found

    def refuse_cycle(self, cycle: Sequence[ResourceId]) -> None:
        """Raise `InvalidManifests` with the path of a cycle, unless the batch has no part in it."""
        names = " → ".join(self._name(node) for node in cycle)
        first = next((self._drafts[node] for node in cycle if node in self._drafts), None)
        if first is None:  # names have closed it since
            return
        error = ReferenceCycle(text=f"references lead in a circle: {names}", where="spec")
        raise InvalidManifests(problems=(problem_of(first.manifest, error),))

    def _name(self, node: ResourceId) -> str:
        draft = self._drafts.get(node)
        if draft is not None:
            return f"{draft.manifest.type.short_name}:{draft.manifest.name}"
        stored = self._state.by_id(node)
        return node if stored is None else f"{self._types.of_schema(stored.schema).short_name}:{stored.name}"
