"""Conditions in the status of a resource: their shape, their keys, and how they change.

A key is the URI of the schema of a condition. Each controller writes its own keys only. Messages must have no secrets;
masking them is left to the controller, which knows them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Self

from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Timestamp
from odf_common.resources.scalar_formats import CORE_BASE, TypeUri

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"
RECONCILIATION_ERROR: Final = TypeUri(context="resource", name="ReconciliationError")
DELETION_BLOCKED: Final = TypeUri(context="resource", name="DeletionBlocked")
NOTICE: Final = TypeUri(context="resource", name="Notice")
WEBHOOK_TARGET_STATUS: Final = TypeUri(context="sink", name="WebhookTargetStatus")
SOURCE_ACTIVITY: Final = TypeUri(context="source", name="SourceActivity")
CHAIN_STATE: Final = TypeUri(context="dataset", name="ChainState")
FLOW_ACTIVITY: Final = TypeUri(context="flow", name="FlowActivity")
VOLUME_USAGE: Final = TypeUri(context="storage", name="VolumeUsage")
PROJECTION_STATE: Final = TypeUri(context="dataset", name="ProjectionState")
# Values and codes of conditions that do not have all.
_VALUES: Final[Mapping[TypeUri, tuple[str, ...]]] = MappingProxyType(
    {WEBHOOK_TARGET_STATUS: ("Ready", "Failed")}
)
_CODES: Final[Mapping[TypeUri, tuple[str, ...]]] = MappingProxyType(
    {
        RECONCILIATION_ERROR: (
            "unresolved-reference",
            "dependency-not-ready",
            "rejected",
            "unavailable",
            "internal",
        ),
        DELETION_BLOCKED: ("in-use", "cleanup-failed"),
        WEBHOOK_TARGET_STATUS: (),
    }
)
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusCondition:
    """A fact about a resource that a controller observed."""

    value: str
    code: str | None = None
    """The kind of the cause, in kebab case."""
    message: str | None = None
    observed_generation: int | None = None
    last_transition_time: Timestamp
    """The time when value or code changed last."""
    retry_at: Timestamp | None = None
    details: Mapping[str, object] | None = None

    def plain(self) -> dict[str, object]:
        """Return the object in a status, without absent fields."""
        fields = {
            "value": self.value,
            "code": self.code,
            "message": self.message,
            "observedGeneration": self.observed_generation,
            "lastTransitionTime": str(self.last_transition_time),
            "retryAt": None if self.retry_at is None else str(self.retry_at),
            "details": None if self.details is None else dict(self.details),
        }
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def from_plain(cls, plain: Mapping[str, object]) -> Self:
        """Read what `plain` returns; raises `InvalidInput`."""
        generation, retry_at, details = (
            plain.get(name) for name in ("observedGeneration", "retryAt", "details")
        )
        if not isinstance(generation, int | None) or not isinstance(details, Mapping | None):
            raise InvalidInput(text=f"expected a condition, got {dict(plain)!r}")
        return cls(
            value=_require_text(plain, "value"),
            code=_require_text(plain, "code") if "code" in plain else None,
            message=_require_text(plain, "message") if "message" in plain else None,
            observed_generation=generation,
            last_transition_time=Timestamp.parse(_require_text(plain, "lastTransitionTime")),
            retry_at=None if retry_at is None else Timestamp.parse(_require_text(plain, "retryAt")),
            details=details,
        )


def with_condition(
    conditions: Mapping[str, StatusCondition], key: TypeUri, condition: StatusCondition
) -> Mapping[str, StatusCondition]:
    """Return the conditions with one of them set; the same object if nothing but the time differs.

    The time of the transition stays unless value or code differ. Raises `InvalidInput` for a value or code that the
    key does not have.
    """
    _check(key, condition)
    previous = conditions.get(str(key))
    if previous is not None and (previous.value, previous.code) == (condition.value, condition.code):
        condition = replace(condition, last_transition_time=previous.last_transition_time)
    return conditions if condition == previous else {**conditions, str(key): condition}


def without_condition(
    conditions: Mapping[str, StatusCondition], key: TypeUri
) -> Mapping[str, StatusCondition]:
    """Return the conditions without one whose cause is over; the same object if it was absent."""
    return (
        {name: one for name, one in conditions.items() if name != str(key)}
        if str(key) in conditions
        else conditions
    )


def values_of(key: TypeUri) -> tuple[str, ...]:
    """Return the values that a condition may have."""
    return _VALUES.get(key, (TRUE, FALSE, UNKNOWN))


def codes_of(key: TypeUri) -> tuple[str, ...] | None:
    """Return the codes that a condition may have; None: any."""
    return _CODES.get(key)


def condition_code(warning: str) -> str:
    """Return the code of a condition for the code of a warning: kebab case for capitals."""
    return _WORD.sub("-", warning).lower()


def _check(key: TypeUri, condition: StatusCondition) -> None:
    values = values_of(key)
    is_free = key.base != CORE_BASE  # the schema of another organisation's condition decides
    if condition.value not in values and not is_free:
        raise InvalidInput(
            where=key.name, text=f"expected one of {', '.join(values)}, got {condition.value!r}"
        )
    codes = codes_of(key)
    if codes is not None and condition.code is not None and condition.code not in codes:
        expected = f"one of {', '.join(codes)}" if codes else "no code"
        raise InvalidInput(where=key.name, text=f"expected {expected}, got {condition.code!r}")


def _require_text(plain: Mapping[str, object], name: str) -> str:
    text = plain.get(name)
    if not isinstance(text, str):
        raise InvalidInput(where=name, text=f"expected a string, got {text!r}")
    return text
