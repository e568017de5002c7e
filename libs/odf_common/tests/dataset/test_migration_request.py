"""Which inputs a request to migrate has: those of both versions of the query, each once and by its alias."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from odf_testing.builders import a_chain, a_dataset, a_push_source, a_schema, a_seed, a_time, a_transform

from odf_common.chain.state import ChainState
from odf_common.chain.transform_steps import RequestFiles
from odf_common.data.schema_evolution import schema_of_event
from odf_common.dataset.replay import migrate_request
from odf_common.errors import InvalidInput, NotFound
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import SetTransform, TransformInput
from odf_common.ports.engine import MigrateRequest

A, B = a_dataset("a"), a_dataset("b")
FILES = RequestFiles(prev_checkpoint=None, new_checkpoint="checkpoint", new_data="data")


def read(dataset: DatasetId, *, has_schema: bool = True) -> ChainState:
    """Return the state of an input."""
    events = (a_seed(dataset=dataset), a_push_source(), *((a_schema(),) if has_schema else ()))
    return a_chain(*events).state


def query(*inputs: tuple[DatasetId, str | None]) -> SetTransform:
    """Return a query of datasets by their aliases."""
    named = tuple(TransformInput(dataset_ref=str(dataset), alias=alias) for dataset, alias in inputs)
    return replace(a_transform(A), inputs=named)


def request(
    old: SetTransform, new: SetTransform, inputs: Mapping[DatasetId, ChainState] | None = None
) -> MigrateRequest:
    known = {A: read(A), B: read(B)} if inputs is None else inputs
    return migrate_request(a_chain().state, old, new, known, system_time=a_time(), files=FILES)


def test_the_inputs_of_both_versions_are_named_once() -> None:
    found = request(query((A, "one"), (B, None)), query((B, None), (A, "ONE"), (A, "two"))).inputs

    assert [one.name for one in found] == ["one", str(B), "two"]
    state = read(A)
    assert state.schema is not None
    assert found[0].schema == schema_of_event(state.schema)
    assert found[0].vocab == state.vocabulary


def test_an_alias_is_not_used_for_another_input_than_before() -> None:
    with pytest.raises(InvalidInput, match=f"one was the alias of {A} and is now that of {B}"):
        request(query((A, "One")), query((B, "one")))


@pytest.mark.parametrize("inputs", [{}, {A: read(A, has_schema=False)}])
def test_an_input_without_a_schema_is_not_found(inputs: Mapping[DatasetId, ChainState]) -> None:
    with pytest.raises(NotFound, match="the schema of one"):
        request(query((A, "one")), query((A, "one")), inputs)
