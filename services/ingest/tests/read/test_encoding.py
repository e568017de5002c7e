"""Bytes that are not UTF-8 are named by what they are, with the way to read them."""

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStep, ReadStepCsv, ReadStepGeoJson, ReadStepJson, ReadStepNdJson
from odf_ingest.read.format import read_file

SCHEMA = pa.schema({"id": pa.int64(), "city": pa.string()})
TEXT = "id,by\u00f8\n1,Troms\u00f8\n"
STEPS = [ReadStepCsv(header=True), ReadStepCsv(), ReadStepNdJson(), ReadStepJson(), ReadStepGeoJson()]


def _zip() -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", bytes(range(256)))
    return whole.getvalue()


def _parquet() -> bytes:
    whole = io.BytesIO()
    pq.write_table(pa.table({"id": [2**40 + 255], "city": ["Tromsø"]}), whole)
    return whole.getvalue()


KINDS = {
    "gzip": (gzip.compress(TEXT.encode()), "is compressed by gzip: .*Decompress"),
    "xz": (lzma.compress(TEXT.encode()), "is compressed by xz: .*Decompress"),
    "bzip2": (bz2.compress(TEXT.encode()), "is compressed by bzip2: .*Decompress"),
    "zstd": (pa.compress(TEXT.encode(), codec="zstd", asbytes=True), "is compressed by zstd: .*Decompress"),
    "zip": (_zip(), "is a ZIP archive, .*export the sheet as Csv"),
    "parquet": (_parquet(), "is Parquet: "),
    "utf-16": (TEXT.encode("utf-16"), "is UTF-16 text: declare `encoding: utf-16`"),
    "latin-1": (TEXT.encode("latin-1"), "is not UTF-8 text: .*`encoding`"),
}


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
@pytest.mark.parametrize(("content", "reason"), KINDS.values(), ids=KINDS)
def test_a_file_that_is_no_text_is_named(tmp_path: Path, step: ReadStep, content: bytes, reason: str) -> None:
    file = tmp_path / "data"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=reason):
        read_file(step, file, SCHEMA)
