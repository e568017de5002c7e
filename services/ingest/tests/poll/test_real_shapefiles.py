"""Shapefiles that others published, polled as archives; compared with pyshp's own reader, whose sources have them."""

import json
import sys
import tarfile
import zipfile
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pytest
import shapefile
from odf_testing.webserver import Page, PageServer

from odf_common.metadata.events import MergeStrategyAppend, MergeStrategySnapshot, ReadStepEsriShapefile
from odf_common.metadata.fetching import FetchStepUrl
from odf_ingest.poll.poller import PollSummary

SAMPLES: Final = Path(sys.prefix) / "share" / "odf" / "samples"  # where `make testsetup` puts them
BLOCKS: Final = ("AREA DOUBLE", "BKG_KEY STRING", "POP1990 BIGINT", "HOUSEHOLDS BIGINT", "geometry STRING")


@pytest.fixture(scope="module")
def samples() -> dict[str, bytes]:
    """Return the files by name."""
    (archive,) = SAMPLES.glob("pyshp-*.tar.gz")
    with tarfile.open(archive) as sources:
        inside = [one for one in sources if "/tests/shapefiles/" in one.name and one.isfile()]
        return {Path(one.name).name: sources.extractfile(one).read() for one in inside}  # type: ignore[union-attr]


def reader(samples: dict[str, bytes], stem: str, encoding: str = "utf-8") -> shapefile.Reader:
    shp, dbf = BytesIO(samples[f"{stem}.shp"]), BytesIO(samples[f"{stem}.dbf"])
    return shapefile.Reader(shp=shp, dbf=dbf, encoding=encoding)


def geometry(shape: Any) -> Any:
    """Return a shape as in GeoJSON: lists, no tuples."""
    return json.loads(json.dumps(shape.__geo_interface__))


def test_one_of_two_shapefiles_of_an_archive_is_read_as_pyshp_reads_it(
    make_polled: Any, poll: Any, web: PageServer, samples: dict[str, bytes]
) -> None:
    archive = samples["blockgroups_multishapefile.zip"]
    web.pages["/blocks.zip"] = Page(body=archive, etag='"1"')
    bench = make_polled(
        FetchStepUrl(url=f"{web.url}/blocks.zip"),
        MergeStrategySnapshot(primary_key=("BKG_KEY",)),
        read=ReadStepEsriShapefile(sub_path="blockgroups2.shp", ddl_schema=BLOCKS),
    )
    with zipfile.ZipFile(BytesIO(archive)) as files:
        inside = {name: files.read(name) for name in files.namelist()}
    with reader(inside, "blockgroups2") as theirs:
        expected = {
            one.record["BKG_KEY"]: (
                one.record["AREA"],
                one.record["POP1990"],
                one.record["HOUSEHOLDS"],
                geometry(one.shape),
            )
            for one in theirs.iterShapeRecords()
        }
    assert len(expected) == 663
    assert poll(bench) == PollSummary(blocks=1, records=663)
    found = bench.values("BKG_KEY", "AREA", "POP1990", "HOUSEHOLDS", "geometry")
    assert {
        key: (area, people, houses, json.loads(shape)) for key, area, people, houses, shape in found
    } == expected
    assert poll(bench) == PollSummary()


def test_latin_1_and_an_archive_in_a_folder(
    make_polled: Any, poll: Any, web: PageServer, samples: dict[str, bytes]
) -> None:
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        for suffix in ("shp", "dbf"):
            files.writestr(f"names/latin1.{suffix}", samples[f"latin1.{suffix}"])
    web.pages["/names.zip"] = Page(body=archive.getvalue())
    bench = make_polled(
        FetchStepUrl(url=f"{web.url}/names.zip"), MergeStrategyAppend(), read=ReadStepEsriShapefile()
    )
    poll(bench)
    with reader(samples, "latin1", "latin-1") as theirs:
        (one,) = theirs.iterShapeRecords()
    ((number, name, shape),) = bench.values("id", "Name", "geometry")
    assert (number, name, json.loads(shape)) == (2, "Ñandú", geometry(one.shape))


def test_a_shape_with_heights_keeps_its_outline_and_the_projection(
    make_polled: Any, poll: Any, web: PageServer, samples: dict[str, bytes]
) -> None:
    web.pages["/REL.zip"] = Page(body=samples["REL.zip"])
    bench = make_polled(
        FetchStepUrl(url=f"{web.url}/REL.zip"),
        MergeStrategyAppend(),
        read=ReadStepEsriShapefile(sub_path="REL/*.shp"),
    )
    poll(bench)
    with zipfile.ZipFile(BytesIO(samples["REL.zip"])) as files:
        inside = {Path(name).name: files.read(name) for name in files.namelist()}
    with reader(inside, "releaseArea20090407") as theirs:
        (one,) = theirs.iterShapeRecords()
    ((name, thickness, shape, projection),) = bench.values("Name", "thickness", "geometry", "projection")
    assert (name, Decimal(thickness)) == (one.record["Name"], Decimal(1))
    assert json.loads(shape) == geometry(one.shape)
    assert projection == inside["releaseArea20090407.prj"].decode()
