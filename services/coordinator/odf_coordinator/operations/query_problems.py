"""Finds queries that the installed engine refuses or answers differently, and upgrades derivatives to its version.

An upgrade commits a SetTransform with the same query and the new version. As for every new query, the state is
migrated (`transforms/engine_output.py`). With a restart all records are derived again from the beginning, in new
blocks.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import structlog

from odf_common.errors import (
    HeadMoved,
    InvalidInput,
    InvalidQuery,
    OdfError,
    Unavailable,
    name_dataset,
    with_advice,
)
from odf_common.identity.dataset_refs import is_pattern, matching_names
from odf_common.metadata.events import DatasetVocabulary, ReadStep, SetDataSchema, SetTransform, Transform
from odf_common.metadata.scalars import Strings
from odf_common.ports.engine import Engine, EngineNotAvailable
from odf_coordinator.catalog.chain_problems import query_remedy, reset_before_query
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets, Stall, inputs_first
from odf_coordinator.commit.committer import retry_on_conflict
from odf_coordinator.definitions.create import DatasetCreator
from odf_coordinator.definitions.declared_columns import declared_schema, sources_of
from odf_coordinator.definitions.query_validation import Validation
from odf_coordinator.operations.rollback import DerivativeRollback

log = structlog.stdlib.get_logger(__name__)

Columns = tuple[SetDataSchema | None, DatasetVocabulary]
# The query of a source with its format, or that of a derivative with the dataset's vocabulary and its inputs' columns
Question = tuple[Transform, ReadStep] | tuple[SetTransform, DatasetVocabulary, tuple[Columns, ...]]


class QueryProblems:
    """Asks the engine about the queries of owned datasets; copies are not computed on this node."""

    def __init__(self, datasets: Datasets, engine: Engine) -> None:
        self._datasets = datasets
        self._engine = engine
        self._errors: dict[Question, OdfError | None] = {}  # None while the engine is asked, too
        self._waiting = deque[Question]()
        self._worker: threading.Thread | None = None
        self._guard = threading.Lock()

    def problem(self, handle: DatasetHandle) -> Stall | None:
        """Return the problem with a dataset's query; None if there is none, or if the engine has not answered yet."""
        state = handle.state
        if not self._datasets.has_key(handle.id):
            return None
        if state.transform is not None:
            columns = self._columns(handle)
            error = None if columns is None else self._error((state.transform, state.vocabulary, columns))
            if error is None:
                return None
            remedy = query_remedy(self._datasets, handle, error)
            text = name_dataset(str(error), handle.alias)
            return Stall(reason=text, remedy=remedy, since=state.system_time)
        for source in sources_of(state):
            if source.preprocess is not None and (error := self._error((source.preprocess, source.read))):
                remedy = (
                    "records are still ingested; commit the source again with a query that is accepted: `odf commit "
                    f"{handle.alias} FILE`, and let a derivative do the rest"
                )
                text = f"its preprocess would be refused today: {error}"
                return Stall(reason=text, remedy=remedy, since=state.system_time)
        return None

    def _columns(self, handle: DatasetHandle) -> tuple[Columns, ...] | None:
        """Return the columns of a derivative's inputs, on which the answer depends; None if an input cannot be read."""
        try:
            inputs = [self._datasets.by_id(dataset) for dataset in handle.inputs()]
        except OdfError:  # a problem of that input
            return None
        return tuple((input_.state.schema, input_.state.vocabulary) for input_ in inputs if input_)

    def _error(self, question: Question) -> OdfError | None:
        with self._guard:
            if question in self._errors:
                return self._errors[question]
            self._errors[question] = None
            self._waiting.append(question)
            if self._worker is None or not self._worker.is_alive():
                self._worker = threading.Thread(target=self._work, name="query-check", daemon=True)
                self._worker.start()
        return None

    def _work(self) -> None:
        """Ask the engine about one query at a time, because an engine that has just started has other requests."""
        while True:
            with self._guard:
                if not self._waiting:
                    self._worker = None
                    return
                question = self._waiting.popleft()
            try:
                self._ask(question)
            except (InvalidQuery, EngineNotAvailable) as error:
                with self._guard:
                    self._errors[question] = error
            except OdfError:
                self._ask_again(question)
            except Exception:  # a bug that one query triggers hides no problem of others
                log.exception("query check failed: a bug")
                self._ask_again(question)

    def _ask_again(self, question: Question) -> None:
        """Remove a question that was not answered, so that the next call of `problem` asks it again."""
        with self._guard:
            del self._errors[question]

    def _ask(self, question: Question) -> None:
        """Raise `InvalidQuery` or `EngineNotAvailable` if the engine would not compute the query as before."""
        match question:
            case SetTransform() as event, DatasetVocabulary() as vocabulary, _:
                validation = Validation(datasets=self._datasets, engine=self._engine)
                validation.require_same_results(event, vocabulary)
            case Transform() as query, read:
                self._engine.validate_preprocess(query, declared_schema(read))


_OTHER_QUERY: Final = (
    "set a query that is accepted with `odf commit {name} FILE`; one that cannot even be analysed is replaced after "
    "{reset}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUpgrade:
    """The upgrade of a derivative that was done or is possible, or the reason why it is refused."""

    alias: str
    before: str
    """The engine version that the transform names; empty if it names none."""
    after: str = ""
    changes: Strings = ()
    """The kinds of differences that results can have."""
    outcome: str
    """One of up-to-date, possible (in a dry run), upgraded, derived-again and refused."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUpgrader:
    """Upgrades derivatives to the installed engine."""

    datasets: Datasets
    creator: DatasetCreator
    rollback: DerivativeRollback

    def upgrade(
        self, refs: Iterable[str], *, is_all: bool, is_restarted: bool, is_dry: bool
    ) -> Iterator[EngineUpgrade]:
        """Upgrade the derivatives, inputs first, and yield the result for each. In a dry run, only yield the results.

        With `is_restarted` the given derivatives are derived again from the beginning; with `is_all`, only those whose
        results can differ. Then derivatives that read them are rolled back. A dataset that is refused does not stop the
        others.
        """
        for handle in self._select(refs, is_all=is_all):
            yield retry_on_conflict(
                lambda handle=handle: self._upgrade(  # type: ignore[misc]
                    handle.alias, is_all=is_all, is_restarted=is_restarted, is_dry=is_dry
                )
            )

    def _select(self, refs: Iterable[str], *, is_all: bool) -> Iterator[DatasetHandle]:
        own = {
            handle.alias: handle
            for handle in self.datasets.all()
            if handle.state.transform is not None and self.datasets.has_key(handle.id)
        }
        if is_all:
            chosen = [*own.values()]
        else:
            refs = tuple(refs)
            like = matching_names([ref for ref in refs if is_pattern(ref)], own)
            chosen = [own[name] for name in like] + [
                self._find_derivative(ref) for ref in refs if not is_pattern(ref)
            ]
        return inputs_first({handle.id: handle for handle in chosen})

    def _find_derivative(self, ref: str) -> DatasetHandle:
        handle = self.datasets.find(ref)
        if handle.state.transform is None:
            what = "has no query" if handle.is_derivative else "is a root"
            raise InvalidInput(
                text=f"{handle.alias} {what}: the engine computes derivatives by their queries"
            )
        self.creator.committer.require_owned(handle.id)
        return handle

    def _upgrade(self, alias: str, *, is_all: bool, is_restarted: bool, is_dry: bool) -> EngineUpgrade:
        handle = self.datasets.find(alias)
        current = handle.state.transform
        assert current is not None, "a derivative has a transform"
        upgrade = EngineUpgrade(alias=alias, before=current.transform.version or "", outcome="refused")
        validation = Validation(datasets=self.datasets, engine=self.creator.engine)
        try:
            checked = validation.upgrade_version(handle.state, current, is_restarted=is_restarted)
            if is_restarted and is_all and not checked.changes:  # only what can differ is derived again
                is_restarted = False
                checked = validation.upgrade_version(handle.state, current, is_restarted=False)
            if checked.refusal:
                raise InvalidQuery(text=checked.refusal)
            version = checked.event.transform.version or ""
            upgrade = replace(upgrade, after=version, changes=checked.changes)
            if checked.event == current and not is_restarted:
                return replace(upgrade, outcome="up-to-date")
            if is_dry:
                return replace(upgrade, outcome="possible")
            self._commit(handle, checked.event, is_restarted=is_restarted)
        except InvalidQuery as error:
            return replace(upgrade, error=self._refusal(error, handle))
        except (HeadMoved, Unavailable):
            raise
        except OdfError as error:
            return replace(upgrade, error=with_advice(error))
        log.info(
            "engine upgraded", dataset=alias, dataset_id=str(handle.id), before=upgrade.before, after=version
        )
        return replace(upgrade, outcome="derived-again" if is_restarted else "upgraded")

    def _commit(self, handle: DatasetHandle, event: SetTransform, *, is_restarted: bool) -> None:
        if not is_restarted:
            self.creator.amend(handle, (event,))
            return
        restarted = self.rollback.restart(handle, event)
        readers = self.rollback.downstream((restarted,))
        # Repeat: readers are rolled back before their inputs, so one may be recomputed before its input is rolled back.
        while [*self.rollback.roll_back(readers)]:
            pass

    def _refusal(self, error: InvalidQuery, handle: DatasetHandle) -> str:
        """Return the reason why a query is refused, with a remedy, unless the engine's message already has one."""
        text = name_dataset(str(error), handle.alias)
        if "`odf engine upgrade" in text:
            return text
        reset = reset_before_query(self.datasets, handle)
        return f"{text}; {_OTHER_QUERY.format(name=handle.alias, reset=reset)}"
