"""Upgrades derivatives to the version of the installed engine: says what differs, and records the new version.

A SetTransform of the same query names the new version. The state is converted as for every new query
(`transforms/migration.py`), or all records are derived again from the beginning, in new blocks.
"""

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
from odf_common.metadata.events import SetTransform
from odf_common.metadata.steps import Strings
from odf_coordinator.catalog.chain_problems import reset_before_query
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets, inputs_first
from odf_coordinator.commit.outcomes import retry_on_conflict
from odf_coordinator.definitions.create import DatasetCreator
from odf_coordinator.definitions.query_validation import Validation
from odf_coordinator.operations.rollback import DerivativeRollback

log = structlog.stdlib.get_logger(__name__)

_OTHER_QUERY: Final = (
    "set a query that is accepted with `odf commit {name} FILE`; one that cannot even be analysed is replaced after "
    "{reset}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUpgrade:
    """The upgrade of a derivative, done or possible, or why it is refused."""

    alias: str
    before: str
    """The version that its transform names; empty if it names none."""
    after: str = ""
    changes: Strings = ()
    """The kinds in which results can differ."""
    outcome: str
    """One of up-to-date, possible (if dry), upgraded, derived-again, refused."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUpgrader:
    """Upgrades derivatives."""

    datasets: Datasets
    creator: DatasetCreator
    rollback: DerivativeRollback

    def upgrade(
        self, refs: Iterable[str], *, is_all: bool, is_restarted: bool, is_dry: bool
    ) -> Iterator[EngineUpgrade]:
        """Upgrade the derivatives, inputs first, and yield what was done; if dry, what would be.

        If restarted, the given ones are derived again from the beginning; of all, those whose results can differ. What
        reads them is rolled back then. A dataset that is refused does not stop the others.
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
        # Readers go first, so a worker may recompute one before its input is rolled back: repeat.
        while [*self.rollback.roll_back(readers)]:
            pass

    def _refusal(self, error: InvalidQuery, handle: DatasetHandle) -> str:
        """Return the reason why a query is refused, and the remedy, unless the engine has named it."""
        text = name_dataset(str(error), handle.alias)
        if "`odf engine upgrade" in text:
            return text
        reset = reset_before_query(self.datasets, handle)
        return f"{text}; {_OTHER_QUERY.format(name=handle.alias, reset=reset)}"
