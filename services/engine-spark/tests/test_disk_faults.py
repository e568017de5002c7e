"""What a disk or process lacks now is no result, and nothing that a checkpoint contains."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from odf_common.errors import StorageUnavailable, explain
from odf_engine_spark.server.grpc_servicer import _response
from odf_engine_spark.spark.error_messages import query_fault
from odf_engine_spark.spark.jvm import Spark
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


def test_a_full_disk_of_spark_is_named_where_users_find_it() -> None:
    with pytest.raises(StorageUnavailable) as caught:
        query_fault(PySparkException("java.io.IOException: No space left on device"))
    said = explain(caught.value)
    assert "the disk of the engine's temporary files cannot be reached: No space left on device" in said
    assert "$ODF_HOME" in said


@pytest.mark.parametrize("number", PASSING)
def test_a_checkpoint_that_cannot_be_read_now_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(_: Path) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(StorageUnavailable):
        read_state(tmp_path / "checkpoint")


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open no file; its JVM still can."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_ = os.dup(0)
    os.close(next_)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_query_whose_rows_no_socket_can_be_opened_for_fails_at_once_and_works_later(spark: Spark) -> None:
    frame = spark.frame(spark.parse("SELECT 1 AS x"))
    rows = spark.collect(frame)
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        spark.collect(frame)
    assert spark.collect(frame) == rows
