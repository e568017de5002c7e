from dataclasses import replace
from typing import Any

import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Timestamp
from odf_common.resources.conditions import (
    CHAIN_STATE,
    DELETION_BLOCKED,
    RECONCILIATION_ERROR,
    WEBHOOK_TARGET_STATUS,
    StatusCondition,
    condition_code,
    with_condition,
    without_condition,
)
from odf_common.resources.scalar_formats import TypeUri

NOON, LATER = Timestamp.parse("2026-11-21T12:00:00Z"), Timestamp.parse("2026-11-21T13:00:00Z")
MISSING = StatusCondition(
    value="True",
    code="unresolved-reference",
    message="SecretSet alice/keys does not exist",
    observed_generation=2,
    last_transition_time=NOON,
)
KEY = str(RECONCILIATION_ERROR)


def test_condition_is_printed_with_its_present_fields_and_read_again() -> None:
    assert MISSING.plain() == {
        "value": "True",
        "code": "unresolved-reference",
        "message": "SecretSet alice/keys does not exist",
        "observedGeneration": 2,
        "lastTransitionTime": "2026-11-21T12:00:00Z",
    }
    full = replace(MISSING, retry_at=LATER, details={"attempts": 3})
    for condition in (MISSING, full):
        assert StatusCondition.from_plain(condition.plain()) == condition


@pytest.mark.parametrize(
    "changes",
    [
        {"value": None},
        {"value": True},
        {"code": 5},
        {"observedGeneration": "2"},
        {"lastTransitionTime": None},
        {"details": []},
        {"retryAt": 5},
    ],
)
def test_damaged_condition_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        StatusCondition.from_plain({**MISSING.plain(), **changes})


@pytest.mark.parametrize(
    ("changes", "time"),
    [
        ({}, NOON),
        ({"message": "another"}, NOON),
        ({"observed_generation": 3}, NOON),
        ({"details": {"a": 1}}, NOON),
        ({"retry_at": LATER}, NOON),
        ({"code": "dependency-not-ready"}, LATER),
        ({"code": None}, LATER),
        ({"value": "False"}, LATER),
    ],
)
def test_time_of_transition_moves_only_when_value_or_code_changes(
    changes: dict[str, Any], time: Timestamp
) -> None:
    new = replace(MISSING, last_transition_time=LATER, **changes)
    updated = with_condition({KEY: MISSING}, RECONCILIATION_ERROR, new)
    assert updated[KEY] == replace(new, last_transition_time=time)


def test_update_that_changes_nothing_returns_the_same_object() -> None:
    conditions = {KEY: MISSING}
    assert (
        with_condition(conditions, RECONCILIATION_ERROR, replace(MISSING, last_transition_time=LATER))
        is conditions
    )


def test_conditions_of_other_keys_stay() -> None:
    other = StatusCondition(value="True", details={"blocks": 5}, last_transition_time=NOON)
    both = with_condition({KEY: MISSING}, CHAIN_STATE, other)
    assert both == {KEY: MISSING, str(CHAIN_STATE): other}
    assert without_condition(both, RECONCILIATION_ERROR) == {str(CHAIN_STATE): other}
    assert without_condition(both, DELETION_BLOCKED) is both


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        (RECONCILIATION_ERROR, "True", "rejected"),
        (RECONCILIATION_ERROR, "False", None),
        (DELETION_BLOCKED, "True", "in-use"),
        (WEBHOOK_TARGET_STATUS, "Ready", None),
        (WEBHOOK_TARGET_STATUS, "Failed", None),
        (CHAIN_STATE, "Unknown", "anything"),
        (TypeUri(base="https://example.com", context="ops", version="v1", name="Own"), "Green", "any"),
    ],
)
def test_values_and_codes_of_a_key_are_accepted(key: TypeUri, value: str, code: str | None) -> None:
    condition = StatusCondition(value=value, code=code, last_transition_time=NOON)
    assert with_condition({}, key, condition) == {str(key): condition}


@pytest.mark.parametrize(
    ("key", "value", "code", "problem"),
    [
        (RECONCILIATION_ERROR, "Ready", None, "expected one of True, False, Unknown"),
        (RECONCILIATION_ERROR, "True", "broken", "expected one of unresolved-reference"),
        (DELETION_BLOCKED, "True", "rejected", "expected one of in-use, cleanup-failed"),
        (WEBHOOK_TARGET_STATUS, "True", None, "expected one of Ready, Failed"),
        (WEBHOOK_TARGET_STATUS, "Ready", "x", "expected no code"),
    ],
)
def test_other_values_and_codes_are_refused(key: TypeUri, value: str, code: str | None, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        with_condition({}, key, StatusCondition(value=value, code=code, last_transition_time=NOON))


@pytest.mark.parametrize(
    ("warning", "code"), [("UnresolvedReference", "unresolved-reference"), ("Rebound", "rebound")]
)
def test_code_is_the_warning_in_kebab_case(warning: str, code: str) -> None:
    assert condition_code(warning) == code
