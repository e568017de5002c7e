"""How many examples hypothesis tries, and which: the same ones everywhere, or others each time.

The root's `conftest.py` loads the profile before any test is imported, so that each `@settings` stands on it.
`HYPOTHESIS_PROFILE` names the profile; `make explore` takes `explore`.
"""

import os
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

_USUAL: Final = 100  # examples of a test that asks for no number of its own
_FACTOR: Final = 20
_COMMON: Final = {
    "database": None,
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": (HealthCheck.too_slow,),  # the machine's business, not the test's
}


def load_profile() -> None:
    """Have hypothesis try the same examples in each run, unless the environment names the profile `explore`."""
    settings.register_profile("repeatable", max_examples=_USUAL, derandomize=True, **_COMMON)  # type: ignore[arg-type]
    settings.register_profile("explore", max_examples=_FACTOR * _USUAL, derandomize=False, **_COMMON)  # type: ignore[arg-type]
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
    if is_repeatable():
        # It also tries constants of our modules that are imported by then: that depends on the tests before.
        providers.HypothesisProvider._local_constants = property(lambda _: Constants())  # type: ignore[assignment]


def is_repeatable() -> bool:
    """Return whether the same examples are tried in each run."""
    return settings().derandomize


def examples(usual: int) -> int:
    """Return how many examples a test tries that usually tries so many, in the profile that is loaded."""
    return usual * settings().max_examples // _USUAL
