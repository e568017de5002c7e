from typing import Any

import pytest

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata import events as ev
from odf_common.metadata import events as st
from odf_common.metadata.events import DatasetSnapshot
from odf_common.metadata.normalize import normalize

ID = DatasetId.of_key(bytes(32))


def sql(**fields: Any) -> st.TransformSql:
    return st.TransformSql(engine="spark", **fields)


def root(*events: ev.KnownEvent, name: str = "foo") -> DatasetSnapshot:
    return DatasetSnapshot(name=name, kind=ev.DatasetKind.Root, metadata=events)


def derivative(*events: ev.KnownEvent) -> DatasetSnapshot:
    return DatasetSnapshot(name="foo", kind=ev.DatasetKind.Derivative, metadata=events)


def push(preprocess: st.Transform | None = None) -> ev.AddPushSource:
    return ev.AddPushSource(
        source_name="default", read=st.ReadStepNdJson(), preprocess=preprocess, merge=st.MergeStrategyAppend()
    )


def transform(*inputs: ev.TransformInput, by: st.Transform | None = None) -> ev.SetTransform:
    return ev.SetTransform(inputs=inputs, transform=by or sql(query="SELECT 1"))


def test_single_query_becomes_the_last_of_one() -> None:
    for snapshot in (
        root(push(sql(query="SELECT 1"))),
        derivative(transform(ev.TransformInput(dataset_ref="a"))),
    ):
        (event,) = normalize(snapshot).metadata
        found = event.preprocess if isinstance(event, ev.AddPushSource) else event.transform  # type: ignore[union-attr]
        assert found == sql(queries=(st.SqlQueryStep(query="SELECT 1"),))


def test_input_without_alias_is_named_as_written() -> None:
    inputs = (
        ev.TransformInput(dataset_ref="Org/Trades"),
        ev.TransformInput(dataset_ref=str(ID)),
        ev.TransformInput(dataset_ref="x", alias="y"),
    )
    (event,) = normalize(derivative(transform(*inputs))).metadata
    assert isinstance(event, ev.SetTransform)
    assert [given.alias for given in event.inputs] == ["Org/Trades", str(ID), "y"]


def test_normal_snapshot_is_unchanged() -> None:
    by = sql(queries=(st.SqlQueryStep(alias="a", query="SELECT 1"), st.SqlQueryStep(query="SELECT * FROM a")))
    snapshot = derivative(transform(ev.TransformInput(dataset_ref="a", alias="b"), by=by), ev.SetInfo())
    assert normalize(snapshot) == snapshot


@pytest.mark.parametrize(
    "queries",
    [
        (),
        (st.SqlQueryStep(alias="a", query="SELECT 1"),),
        (st.SqlQueryStep(query="SELECT 1"), st.SqlQueryStep(query="SELECT 2")),
        (st.SqlQueryStep(query="SELECT 1"), st.SqlQueryStep(alias="a", query="SELECT 2")),
    ],
)
def test_only_the_last_query_has_no_alias(queries: tuple[st.SqlQueryStep, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"content\.metadata\[0\]\.preprocess"):
        normalize(root(push(sql(queries=queries))))


@pytest.mark.parametrize(
    ("snapshot", "complaint"),
    [
        (root(name="foo_bar"), "content.name"),
        (
            root(ev.SetInfo(), ev.Seed(dataset_id=ID, dataset_kind=ev.DatasetKind.Root)),
            "content.metadata[1]: a snap",
        ),
        (root(ev.AddData()), "AddData cannot define a dataset"),
        (derivative(ev.ExecuteTransform(query_inputs=())), "ExecuteTransform cannot define"),
        (root(ev.DisablePollingSource()), "DisablePollingSource cannot define"),
        (root(ev.DisablePushSource(source_name="a")), "DisablePushSource cannot define"),
        (derivative(push()), "AddPushSource is only allowed in a root dataset"),
        (
            root(transform(ev.TransformInput(dataset_ref="a"))),
            "SetTransform is only allowed in a derivative dataset",
        ),
        (root(push(sql(query="a", queries=()))), "either 'query' or 'queries'"),
        (root(push(sql())), "needs 'query' or 'queries'"),
        (derivative(transform(ev.TransformInput(dataset_ref="a b"))), "inputs[0].datasetRef"),
        (
            derivative(transform(ev.TransformInput(dataset_ref="a"), ev.TransformInput(dataset_ref="A"))),
            "two inputs are called 'a'",
        ),
    ],
)
def test_an_invalid_definition_of_a_dataset_is_refused(snapshot: DatasetSnapshot, complaint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        normalize(snapshot)
    assert complaint in str(caught.value)
