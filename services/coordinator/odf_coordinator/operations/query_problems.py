"""Problems of queries that are in a chain, but that today's engine refuses, or computes to other results.

The engine is asked once for each query and the columns that it reads, in the background: a status does not wait for an
engine that starts. A query with records to read meets the same problem when it runs.
"""

import threading
from collections import deque

import structlog

from odf_common.errors import InvalidQuery, OdfError, name_dataset
from odf_common.metadata.events import DatasetVocabulary, SetDataSchema, SetTransform
from odf_common.metadata.steps import ReadStep, Transform
from odf_common.ports.engine import Engine, EngineNotAvailable
from odf_coordinator.catalog.chain_problems import query_remedy
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.catalog.stalls import Stall
from odf_coordinator.definitions.declared_schemas import declared_schema, sources_of
from odf_coordinator.definitions.query_validation import Validation

log = structlog.stdlib.get_logger(__name__)

Columns = tuple[SetDataSchema | None, DatasetVocabulary]
# The query of a source with its format, or that of a derivative with the dataset's vocabulary and its inputs' columns
Question = tuple[Transform, ReadStep] | tuple[SetTransform, DatasetVocabulary, tuple[Columns, ...]]


class QueryProblems:
    """Asks the engine about queries of datasets whose key is on this node: others are not computed here."""

    def __init__(self, datasets: Datasets, engine: Engine) -> None:
        self._datasets = datasets
        self._engine = engine
        self._errors: dict[Question, OdfError | None] = {}  # None while the engine is asked, too
        self._waiting = deque[Question]()
        self._worker: threading.Thread | None = None
        self._guard = threading.Lock()

    def problem(self, handle: DatasetHandle) -> Stall | None:
        """Return the problem of a dataset; None if it has none, or if the engine has not answered yet."""
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
        """Return the columns of a derivative's inputs, on which the answer depends; None if one cannot be read."""
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
        """Ask the engine about one query at a time: an engine that starts has others to answer."""
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
        """Let the next status ask: there was no answer."""
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
