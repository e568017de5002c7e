from typing import Any, get_args

import pytest

from odf_common.metadata.steps import MergeStrategy, ReadStep
from odf_ingest.merge import merge
from odf_ingest.read import read_batch, read_file


@pytest.mark.parametrize("step", get_args(ReadStep))
def test_every_read_format_has_a_reader(step: Any) -> None:
    assert read_file.dispatch(step) is not read_file.dispatch(object)
    assert read_batch.dispatch(step) is not read_batch.dispatch(object)


@pytest.mark.parametrize("strategy", get_args(MergeStrategy))
def test_every_merge_strategy_exists(strategy: type) -> None:
    assert merge.dispatch(strategy) is not merge.dispatch(object)
