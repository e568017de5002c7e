"""What a disk or process lacks now is no result, and nothing that a checkpoint contains."""

import errno
import os
from pathlib import Path

import pytest

from odf_common.errors import StorageUnavailable
from odf_engine_spark.server.grpc_servicer import _response
from odf_engine_spark.spark.progress import Progress
from odf_engine_spark.transform.checkpoint import read_state

PASSING = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.ENOMEM)


def never(*_: object) -> None:
    raise AssertionError("it is no result")


@pytest.mark.parametrize("number", PASSING)
def test_a_request_that_meets_an_error_of_the_disk_has_no_result(number: int) -> None:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(StorageUnavailable):
        _response("transform", fail, Progress(), invalid=never, failed=never)


@pytest.mark.parametrize("number", PASSING)
def test_a_checkpoint_that_cannot_be_read_now_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(_: Path) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(StorageUnavailable):
        read_state(tmp_path / "checkpoint")
