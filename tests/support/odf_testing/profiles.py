"""How many examples hypothesis tries, and which: the same ones in each run, or random ones.

The root's `conftest.py` loads the profile before any test is imported, so that every `@settings` is based on it.
`HYPOTHESIS_PROFILE` names the profile; `make explore` uses `explore`.
"""

import os
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

_USUAL: Final = 100  # examples of a test that sets no number, in the unit that `examples` takes
_REPEATED: Final = 50  # they are the same in each run
_EXPLORED: Final = 2_000
_COMMON: Final = {
    "database": None,
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": (HealthCheck.too_slow,),  # depends on the machine, not on the test
}


def load_profile() -> None:
    """Try the same examples in each run, unless the environment names the profile `explore`."""
    settings.register_profile("repeatable", max_examples=_REPEATED, derandomize=True, **_COMMON)  # type: ignore[arg-type]
    settings.register_profile("explore", max_examples=_EXPLORED, derandomize=False, **_COMMON)  # type: ignore[arg-type]
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
    if is_repeatable():
        # It also tries constants of our imported modules, and which are imported depends on the tests that ran before.
        providers.HypothesisProvider._local_constants = property(lambda _: Constants())  # type: ignore[assignment]


def is_repeatable() -> bool:
    """Return whether the same examples are tried in each run."""
    return settings().derandomize


def examples(usual: int) -> int:
    """Return the number of examples of a test in the loaded profile, given that others have 100."""
    return usual * settings().max_examples // _USUAL
