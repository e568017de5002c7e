from pathlib import Path
from typing import Any, get_args

import pytest

from odf_common.metadata.steps import (
    MergeStrategy,
    ReadStep,
    ReadStepEsriShapefile,
    ReadStepGeoJson,
    ReadStepNdGeoJson,
)
from odf_ingest.errors import UnsupportedStep
from odf_ingest.merge import merge
from odf_ingest.read import read_batch, read_file

LATER = {ReadStepGeoJson, ReadStepNdGeoJson, ReadStepEsriShapefile}


@pytest.mark.parametrize("step", get_args(ReadStep))
def test_every_read_format_has_a_reader_or_says_that_it_has_none(step: Any) -> None:
    if step in LATER:
        with pytest.raises(UnsupportedStep, match=step.__name__):
            read_file(step(), Path("nowhere"), None)
    else:
        assert read_file.dispatch(step) is not read_file.dispatch(object)
        assert read_batch.dispatch(step) is not read_batch.dispatch(object)


@pytest.mark.parametrize("strategy", get_args(MergeStrategy))
def test_every_merge_strategy_is_there(strategy: type) -> None:
    assert merge.dispatch(strategy) is not merge.dispatch(object)
