"""Normalization of a snapshot before its events are committed (wire-facts §3.2, last paragraph).

It checks which events may define a dataset of the given kind, converts queries to one form, and names inputs. The
coordinator then resolves references of inputs to ids, because only it knows the datasets.
"""

from dataclasses import replace
from typing import Final, TypeVar

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import parse_alias, parse_ref
from odf_common.metadata.events import (
    DERIVATIVE_ONLY,
    ROOT_ONLY,
    AddData,
    AddPushSource,
    DatasetKind,
    DatasetSnapshot,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    KnownEvent,
    Seed,
    SetPollingSource,
    SetTransform,
    SqlQueryStep,
    Transform,
    TransformInput,
)

_NEVER: Final = (AddData, ExecuteTransform, DisablePollingSource, DisablePushSource)
S = TypeVar("S", SetPollingSource, AddPushSource)


def normalize(snapshot: DatasetSnapshot) -> DatasetSnapshot:
    """Return the snapshot with normalized queries and names of inputs; raises `InvalidInput` with the path."""
    try:
        parse_alias(snapshot.name)
    except InvalidInput as error:
        raise InvalidInput(text=error.text, where="content.name") from error
    events = tuple(
        _normalize(event, snapshot.kind, f"content.metadata[{number}]")
        for number, event in enumerate(snapshot.metadata)
    )
    return replace(snapshot, metadata=events)


def _normalize(event: KnownEvent, kind: DatasetKind, where: str) -> KnownEvent:
    _check_allowed(event, kind, where)
    match event:
        case SetPollingSource():
            return _with_preprocess(event, where)
        case AddPushSource():
            return _with_preprocess(event, where)
        case SetTransform():
            inputs = tuple(
                _name_input(input_, f"{where}.inputs[{n}]") for n, input_ in enumerate(event.inputs)
            )
            _check_distinct(inputs, where)
            transform = normalize_transform(event.transform, f"{where}.transform")
            return SetTransform(inputs=inputs, transform=transform)
        case _:
            return event


def _check_allowed(event: KnownEvent, kind: DatasetKind, where: str) -> None:
    name = type(event).__name__
    if isinstance(event, Seed):
        raise InvalidInput(text="a snapshot has no Seed; it is created with the dataset", where=where)
    if isinstance(event, _NEVER):
        raise InvalidInput(text=f"{name} cannot define a dataset", where=where)
    if isinstance(event, ROOT_ONLY) and kind is not DatasetKind.Root:
        raise InvalidInput(
            text=f"{name} is only allowed in a root dataset, not in a {kind.name}", where=where
        )
    if isinstance(event, DERIVATIVE_ONLY) and kind is not DatasetKind.Derivative:
        raise InvalidInput(
            text=f"{name} is only allowed in a derivative dataset, not in a {kind.name}", where=where
        )


def _with_preprocess(event: S, where: str) -> S:
    if event.preprocess is None:
        return event
    return replace(event, preprocess=normalize_transform(event.preprocess, f"{where}.preprocess"))


def normalize_transform(transform: Transform, where: str) -> Transform:
    """Return the transform with `queries` instead of `query`; the last query is the output and has no alias."""
    if transform.query is not None and transform.queries is not None:
        raise InvalidInput(text="give either 'query' or 'queries', not both", where=where)
    if transform.query is not None:
        return replace(transform, query=None, queries=(SqlQueryStep(query=transform.query),))
    if not transform.queries:
        raise InvalidInput(text="a transform needs 'query' or 'queries'", where=where)
    *others, last = transform.queries
    if last.alias is not None or any(step.alias is None for step in others):
        text = "the last query is the output and has no alias; every query before it needs one"
        raise InvalidInput(text=text, where=f"{where}.queries")
    return transform


def _name_input(input_: TransformInput, where: str) -> TransformInput:
    try:
        parse_ref(input_.dataset_ref)
    except InvalidInput as error:
        raise InvalidInput(text=error.text, where=f"{where}.datasetRef") from error
    return input_ if input_.alias is not None else replace(input_, alias=input_.dataset_ref)


def _check_distinct(inputs: tuple[TransformInput, ...], where: str) -> None:
    aliases = [(input_.alias or "").lower() for input_ in inputs]
    for alias in aliases:
        if aliases.count(alias) > 1:
            raise InvalidInput(
                text=f"two inputs are called {alias!r}; give them different aliases", where=where
            )
