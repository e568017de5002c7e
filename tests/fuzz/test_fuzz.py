from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SECONDS = (2, pytest.param(600, marks=[pytest.mark.soak, pytest.mark.timeout(900)]))  # of each target


def the_runner() -> Any:
    """Return `run.py`, which is a script and in no package."""
    spec = spec_from_file_location("fuzz_run", HERE / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUN = the_runner()


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("target", RUN.TARGETS)
def test_every_input_is_accepted_or_refused(target: str, seconds: int, tmp_path: Path) -> None:
    outcome = RUN.fuzz(target, seconds, findings=tmp_path)
    assert outcome.is_clean, outcome.output
    assert outcome.executions > len(list((HERE / "corpus" / target).iterdir()))
