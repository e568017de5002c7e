import pytest
from hypothesis import given
from hypothesis import strategies as some

from odf_common.errors import ChainRuleViolated, Conflict, InvalidInput, OdfError, Refused, Unavailable
from odf_common.resources.failures import (
    MAX_DELAY_MS,
    SWEEP_MS,
    DependencyMissing,
    DependencyNotReady,
    FailureClass,
    failure_class,
    failure_code,
    retry_delay_ms,
)
from odf_common.resources.phases import TransitionRefused

ALMOST_ONE = 1 - 2**-53


@pytest.mark.parametrize(
    ("error", "expected", "code"),
    [
        (DependencyMissing(text="no SecretSet keys"), FailureClass.WAITING, "unresolved-reference"),
        (DependencyNotReady(text="keys is Failed"), FailureClass.WAITING, "dependency-not-ready"),
        (Unavailable(what="Kafka"), FailureClass.TRANSIENT, "unavailable"),
        (Conflict(), FailureClass.TRANSIENT, "unavailable"),
        (TimeoutError(), FailureClass.TRANSIENT, "unavailable"),
        (ConnectionResetError(), FailureClass.TRANSIENT, "unavailable"),
        (OSError(28, "no space"), FailureClass.TRANSIENT, "unavailable"),
        (ChainRuleViolated(rule="r", text="t"), FailureClass.PERMANENT, "rejected"),
        (InvalidInput(text="t"), FailureClass.PERMANENT, "rejected"),
        (Refused(text="bad credentials"), FailureClass.PERMANENT, "rejected"),
        (OdfError(), FailureClass.PERMANENT, "rejected"),
        (TransitionRefused(phase="Ready", cause="created"), FailureClass.BUG, "internal"),
        (KeyError("x"), FailureClass.BUG, "internal"),
    ],
)  # fmt: skip
def test_class_and_code_of_a_failure(error: Exception, expected: FailureClass, code: str) -> None:
    assert failure_class(error) is expected
    assert failure_code(error) == code


def test_waiting_is_woken_by_events_and_by_a_slow_sweep() -> None:
    assert retry_delay_ms(FailureClass.WAITING, 100, 0.5) == SWEEP_MS == 300_000


@pytest.mark.parametrize(
    ("earlier", "limit"), [(0, 1_000), (1, 2_000), (5, 32_000), (8, 256_000), (9, 300_000), (10_000, 300_000)]
)
def test_transient_failure_is_retried_forever_with_full_jitter_below_a_doubling_limit(
    earlier: int, limit: int
) -> None:
    assert retry_delay_ms(FailureClass.TRANSIENT, earlier, 0.0) == 0
    assert retry_delay_ms(FailureClass.TRANSIENT, earlier, 0.5) == limit // 2
    assert retry_delay_ms(FailureClass.TRANSIENT, earlier, ALMOST_ONE) == limit - 1


def test_permanent_failure_is_not_retried() -> None:
    assert retry_delay_ms(FailureClass.PERMANENT, 0, 0.5) is None


def test_bug_is_retried_ten_times_and_then_permanent() -> None:
    delays = [retry_delay_ms(FailureClass.BUG, earlier, 0.5) for earlier in range(12)]
    assert delays[:10] == [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000, 150_000]
    assert delays[10:] == [None, None]


@given(some.integers(0), some.floats(0, 1, exclude_max=True))
def test_delay_is_never_above_five_minutes(earlier: int, random: float) -> None:
    delay = retry_delay_ms(FailureClass.TRANSIENT, earlier, random)
    assert delay is not None
    assert 0 <= delay < MAX_DELAY_MS
