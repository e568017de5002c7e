import importlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from odf_testing.profiles import examples, is_repeatable


def tried() -> list[int]:
    """Return which integers a test of this file is given."""
    found: list[int] = []

    @given(st.integers())
    def test(value: int) -> None:
        found.append(value)

    test()
    return found


def test_the_same_examples_are_tried_whatever_was_imported_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tried()
    (tmp_path / "constants.py").write_text(f"VALUES = {list(range(10**6, 10**6 + 1000))}")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("constants")
    assert (tried() == before) is is_repeatable()


def test_the_profile_applies_to_a_test_with_its_own_settings() -> None:
    class Machine(RuleBasedStateMachine):
        pass

    for own in (settings(max_examples=3), settings(suppress_health_check=[]), Machine.TestCase.settings):
        assert own.derandomize is is_repeatable()
        assert (own.deadline, own.database, own.print_blob) == (None, None, True)
    assert examples(15) == (7 if is_repeatable() else 300)
