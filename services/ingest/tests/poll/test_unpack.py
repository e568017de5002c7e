import bz2
import contextlib
import gzip
import io
import lzma
import os
import resource
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from odf_testing.webserver import Page, PageServer

from odf_common.errors import InvalidInput
from odf_common.metadata.events import AddData
from odf_common.metadata.fetching import (
    CompressionFormat,
    FetchStepFilesGlob,
    FetchStepUrl,
    PrepStepDecompress,
    PrepStepPipe,
    RequestHeader,
)
from odf_ingest.poll import unpack as decompress
from odf_ingest.poll.poll_errors import (
    CommandFailed,
    ForeignSource,
    NothingAtSource,
    PollCancelled,
    SourceUnreachable,
    TooLarge,
)
from odf_ingest.poll.poller import _masking
from odf_ingest.poll.templates import Secrets, fill_in

LINE = b'{"id":1,"v":"a"}\n'
GZIP, ZIP = CompressionFormat.Gzip, CompressionFormat.Zip


def zipped(**files: bytes) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return raw.getvalue()


def tarred(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def zstd(content: bytes) -> bytes:
    raw = pa.BufferOutputStream()
    with pa.CompressedOutputStream(raw, "zstd") as out:
        out.write(content)
    return bytes(raw.getvalue())


@pytest.fixture
def source(make_polled: Any, tmp_path: Path) -> Callable[..., Any]:
    """Return a factory of datasets that poll a file with these bytes."""

    def make(content: bytes, *steps: Any) -> Any:
        file = tmp_path / "fetched.bin"
        file.write_bytes(content)
        return make_polled(FetchStepUrl(url=file.as_uri()), prepare=steps)

    return make


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(LINE, mtime=0),
        gzip.compress(LINE[:5], mtime=0) + gzip.compress(LINE[5:], mtime=0),
        bz2.compress(LINE),
        lzma.compress(LINE),
        lzma.compress(LINE[:5]) + b"\0" * 4 + lzma.compress(LINE[5:]),
        zstd(LINE),
    ],
    ids=["gzip", "gzip members", "bzip2", "xz", "xz streams", "zstd"],
)
def test_compressed_streams_are_recognised(source: Any, poll: Any, content: bytes) -> None:
    bench = source(content, PrepStepDecompress(format=GZIP))
    assert poll(bench).records == 1
    assert bench.values("id") == [(1,)]


@pytest.mark.parametrize(
    ("files", "sub_path"),
    [
        ({"a.json": LINE}, None),
        ({"a.json": LINE, "__MACOSX/a.json": b"x", "dir/": b""}, None),
        ({"a.json": LINE, "b.txt": b"x"}, "a.json"),
        ({"in/2024/a.json": LINE, "b.txt": b"x"}, "in/*/a.json"),
        ({"in/2024/a.json": LINE, "b.txt": b"x"}, "**/a.json"),
        ({"a.json": LINE, "b.txt": b"x"}, "**/a.json"),
        ({"[a].json": LINE, "a.json": b"x"}, "[a].json"),
        ({"../../a.json": LINE}, None),
    ],
)
def test_one_file_of_a_zip_archive_is_read(
    source: Any, poll: Any, files: dict[str, bytes], sub_path: str | None
) -> None:
    bench = source(zipped(**files), PrepStepDecompress(format=ZIP, sub_path=sub_path))
    assert poll(bench).records == 1


def test_the_only_file_of_a_tar_archive_is_read_and_of_several_one_has_to_be_chosen(
    source: Any, poll: Any
) -> None:
    one, other = (tarfile.TarInfo("a.json"), LINE), (tarfile.TarInfo("b.json"), LINE)
    bench = source(tarred(one), PrepStepDecompress(format=GZIP))
    assert poll(bench).records == 1
    bench = source(tarred(one, other), PrepStepDecompress(format=GZIP))
    with pytest.raises(
        InvalidInput, match=r"the archive has 'a\.json', 'b\.json'; choose one with `subPath`"
    ):
        poll(bench)


def test_a_file_of_a_tar_archive_is_read(source: Any, poll: Any) -> None:
    raw = tarred((tarfile.TarInfo("./in/a.json"), LINE), (tarfile.TarInfo("b"), b"x"))
    assert poll(source(raw, PrepStepDecompress(format=GZIP, sub_path="in/*.json"))).records == 1


def test_steps_follow_one_another(source: Any, poll: Any) -> None:
    inner = gzip.compress(b'{"id":2}\n', mtime=0)
    steps = (
        PrepStepDecompress(format=ZIP, sub_path="*.gz"),
        PrepStepDecompress(format=GZIP),
        PrepStepPipe(command=("sed", "s/2/7/")),
    )
    bench = source(zipped(**{"x.gz": inner}), *steps)
    poll(bench)
    assert bench.values("id") == [(7,)]


@pytest.mark.parametrize(
    ("content", "step", "message"),
    [
        (LINE, PrepStepDecompress(format=GZIP), "neither gzip, bzip2, xz nor zstd"),
        (zipped(a=LINE), PrepStepDecompress(format=GZIP), "is a zip archive"),
        (LINE, PrepStepDecompress(format=ZIP), "cannot be unpacked as Zip: File is not a zip file"),
        (
            gzip.compress(LINE * 100, mtime=0)[:-20],
            PrepStepDecompress(format=GZIP),
            "cannot be unpacked as Gzip",
        ),
        (lzma.compress(LINE * 100)[:-20], PrepStepDecompress(format=GZIP), "it is cut off"),
        (zstd(os.urandom(5000))[:-20], PrepStepDecompress(format=GZIP), "cannot be unpacked as Gzip"),
        (zipped(a=LINE, b=LINE), PrepStepDecompress(format=ZIP), "the archive has 'a', 'b'; choose one"),
        (zipped(a=LINE, b=LINE), PrepStepDecompress(format=ZIP, sub_path="*"), "matches 2 files"),
        (
            zipped(a=LINE),
            PrepStepDecompress(format=ZIP, sub_path="x"),
            "'x' matches no file; the archive has 'a'",
        ),
        (zipped(), PrepStepDecompress(format=ZIP), "has no file"),
    ],
)
def test_what_cannot_be_unpacked_is_named(
    source: Any, poll: Any, content: bytes, step: Any, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        poll(source(content, step))
    assert "fetched.bin, prepare" in str(caught.value)


def test_links_and_encrypted_files_in_archives_are_refused(source: Any, poll: Any) -> None:
    link = zipfile.ZipInfo("a")
    link.external_attr = 0o120777 << 16
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(InvalidInput, match="'a' is not a regular file"):
        poll(source(raw.getvalue(), PrepStepDecompress(format=ZIP)))
    encrypted = bytearray(zipped(a=LINE))
    encrypted[encrypted.rindex(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(InvalidInput, match="encrypted"):
        poll(source(bytes(encrypted), PrepStepDecompress(format=ZIP)))
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
        info = tarfile.TarInfo("a")
        info.type, info.linkname = kind, "/etc/passwd"
        with pytest.raises(InvalidInput, match="'a' is not a regular file"):
            poll(source(tarred((info, b"")), PrepStepDecompress(format=GZIP, sub_path="a")))


@pytest.mark.parametrize(
    ("content", "step"),
    [
        (gzip.compress(b"\n" * 5000, mtime=0), PrepStepDecompress(format=GZIP)),
        (zipped(a=b"\n" * 5000), PrepStepDecompress(format=ZIP)),
        (lzma.compress(b"\n" * 5000), PrepStepDecompress(format=GZIP)),
        (LINE, PrepStepPipe(command=("yes",))),
    ],
)
def test_what_grows_beyond_the_limit_is_refused(source: Any, poll: Any, content: bytes, step: Any) -> None:
    with pytest.raises(TooLarge, match="has more than 4000 bytes"):
        poll(source(content, step), size=4000)


def test_as_much_as_the_limit_is_unpacked(source: Any, poll: Any) -> None:
    content = LINE + b"\n" * (4000 - len(LINE))
    made = source(gzip.compress(content, mtime=0), PrepStepDecompress(format=GZIP))
    poll(made, size=len(content))
    with pytest.raises(TooLarge):
        poll(source(gzip.compress(content, mtime=0), PrepStepDecompress(format=GZIP)), size=len(content) - 1)


def test_what_grows_more_than_honest_data_is_a_bomb(
    source: Any, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decompress, "RATIO_CHECKED_FROM_BYTES", 1_000_000)
    with pytest.raises(InvalidInput, match="a decompression bomb"):
        poll(source(lzma.compress(b"\n" * 3_000_000), PrepStepDecompress(format=GZIP)))


def test_archives_with_too_many_entries_are_refused(
    source: Any, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decompress, "MAX_ARCHIVE_ENTRIES", 2)
    for raw, step in (
        (zipped(a=b"", b=b"", c=b""), PrepStepDecompress(format=ZIP, sub_path="a")),
        (
            tarred(*((tarfile.TarInfo(name), b"") for name in "abc")),
            PrepStepDecompress(format=GZIP, sub_path="a"),
        ),
    ):
        with pytest.raises(InvalidInput, match="more than 2 entries"):
            poll(source(raw, step))


def test_the_error_of_a_failed_command_has_its_output(source: Any, poll: Any) -> None:
    for command, message in {
        ("sh", "-c", "cat; echo oops >&2; exit 3"): "command sh: exit code 3: oops",
        ("sh", "-c", "kill -9 $$"): "ended by signal 9",
        ("absent-command",): "cannot be started: No such file",
    }.items():
        with pytest.raises(CommandFailed, match=message):
            poll(source(LINE, PrepStepPipe(command=command)))


def test_a_command_runs_in_a_process_with_many_open_files(source: Any, poll: Any) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
        while stack.enter_context(open(os.devnull)).fileno() < 1100:  # noqa: PTH123 - more than select() takes
            pass
        bench = source(LINE, PrepStepPipe(command=("cat",)))
        assert poll(bench).records == 1


def test_a_command_sees_none_of_the_nodes_variables(
    source: Any, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODF_SECRET", "hush")
    bench = source(LINE, PrepStepPipe(command=("sh", "-c", 'echo "{\\"id\\":1,\\"v\\":\\"$ODF_SECRET\\"}"')))
    poll(bench)
    assert bench.values("v") == [("",)]


def test_a_command_that_hangs_ends_with_the_poll_and_after_its_time(
    source: Any, make_poller: Any, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = source(LINE, PrepStepPipe(command=(sys.executable, "-c", "import time; time.sleep(60)")))
    begun = time.monotonic()
    with pytest.raises(PollCancelled):
        make_poller(bench).poll(bench.dataset, lambda _: None, lambda: time.monotonic() < begun + 0.5)
    monkeypatch.setattr("odf_ingest.poll.fetch.container.TIMEOUT_SECONDS", 0.3)
    with pytest.raises(CommandFailed, match="took longer"):
        poll(bench)
    assert time.monotonic() < begun + 10


def test_a_source_of_another_node_runs_no_command_and_reads_no_file(source: Any, poll: Any) -> None:
    bench = source(LINE, PrepStepPipe(command=("cat",)))
    with pytest.raises(ForeignSource, match="and uses Pipe, Url"):
        poll(bench, is_trusted=lambda _: False)
    assert poll(bench, is_trusted=lambda dataset: dataset == bench.dataset).records == 1


def test_a_file_that_cannot_be_written_is_no_damaged_archive(tmp_path: Path) -> None:
    """The fault is on this node: the download is valid."""
    archive = tmp_path / "archive"
    archive.write_bytes(gzip.compress(LINE))
    context = cast("Any", SimpleNamespace(limits=SimpleNamespace(size=100)))
    with pytest.raises(FileNotFoundError):
        decompress.decompress(PrepStepDecompress(format=GZIP), archive, tmp_path / "none" / "target", context)


KEY = "k/y+ä"


def test_templates_are_filled_in_when_data_is_fetched_and_reach_no_block_or_report(
    make_polled: Any, poll: Any, web: PageServer
) -> None:
    web.pages["/hush-hush/a"] = Page(body=LINE)
    step = FetchStepUrl(
        url=web.url + "/${{ env.TOKEN }}/a?q=${{env.Q||'none'}}",
        headers=(RequestHeader(name="X-Key", value="Bearer ${{ env.ABSENT || env.KEY }}"),),
    )
    bench = make_polled(step)
    reports: list[str] = []
    assert poll(bench, environ={"TOKEN": "hush-hush", "KEY": "k1234"}, report=reports.append).records == 1
    (asked,) = web.requests
    assert (asked["path"], asked["x-key"]) == ("/hush-hush/a?q=none", "Bearer k1234")
    assert f"{web.url}/***/a" in reports
    assert not any("hush" in report for report in reports)
    assert bench.state.polling_source.fetch == step
    states = [str(one.new_source_state) for one in bench.events() if isinstance(one, AddData)]
    assert not any("hush" in state for state in states)


@pytest.mark.parametrize(("status", "error"), [(404, NothingAtSource), (500, SourceUnreachable)])
def test_values_are_masked_in_errors(
    make_polled: Any, poll: Any, web: PageServer, status: int, error: type[Exception]
) -> None:
    web.pages["/hush-hush"] = Page(fails=[status] * 3)
    bench = make_polled(FetchStepUrl(url=web.url + "/${{ env.TOKEN }}"))
    with pytest.raises(error, match=rf"{web.url}/\*\*\* ") as caught:
        poll(bench, environ={"TOKEN": "hush-hush"})
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_an_address_that_is_a_variable_is_masked_without_its_query_too(
    make_polled: Any, poll: Any, web: PageServer
) -> None:
    web.pages["/hush-hush"] = Page(fails=[404] * 3)
    bench = make_polled(FetchStepUrl(url="${{ env.FEED }}"))
    with pytest.raises(NothingAtSource) as caught:
        poll(bench, environ={"FEED": web.url.replace("://", "://ann:pa55@") + "/hush-hush?token=tok-tok"})
    assert "hush" not in str(caught.value)


def test_parts_of_an_address_that_is_a_variable_are_masked() -> None:
    secrets = Secrets(frozenset({"ftp://ann:p%40ss@example.org/a?token=tok-tok&b=%2Fquery"}))
    for part in ("p%40ss", "p@ss", "tok-tok", "ftp://example.org/a", "%2Fquery", "/query"):
        assert secrets.mask(f"530 {part}") == "530 ***", part
    assert Secrets(frozenset({"http://[::1"})).mask("http://[::1") == "***"


def test_an_error_without_values_keeps_its_cause() -> None:
    cause = OSError("reset")
    for filled, kept in ((Secrets(), cause), (Secrets(frozenset({"hush-hush"})), None)):
        with pytest.raises(SourceUnreachable) as caught, _masking(filled):
            raise SourceUnreachable(what="hush-hush", why="reset") from cause
        assert caught.value.__cause__ is kept


def test_values_are_masked_as_they_are_written_in_urls() -> None:
    _, secrets = fill_in(FetchStepUrl(url="${{ env.KEY }}"), {"KEY": KEY})
    assert secrets.mask("a k/y%2B%C3%A4 b k%2Fy%2B%C3%A4 c k/y+ä") == "a *** b *** c ***"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("${{ env.ABSENT }}", "there is no value of env.ABSENT; set it in the node's environment"),
        ("${{ env.EMPTY || env.ABSENT }}", "no value of env.EMPTY or env.ABSENT"),
        ("${{ secrets.X }}", "expected"),
        ("${{ env.X || }}", "expected"),
        ("${{ }}", "expected"),
    ],
)
def test_templates_without_a_value_are_refused(template: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fill_in(FetchStepUrl(url=template), {"EMPTY": ""})


def test_only_the_fixed_folder_of_a_glob_may_be_a_template(
    make_polled: Any, poll: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_bytes(LINE)
    bench = make_polled(FetchStepFilesGlob(path="${{ env.DATA }}/*.json"))
    assert poll(bench, environ={"DATA": str(tmp_path)}).records == 1
    for path in ("/data/${{ env.DATA }}.json", "/data/*/${{ env.DATA }}/a.json", "/data/a*${{ env.DATA }}"):
        with pytest.raises(InvalidInput, match="may only be in the folders before the first wildcard"):
            fill_in(FetchStepFilesGlob(path=path), {"DATA": "x"})


def test_a_source_of_another_node_sees_no_variables(make_polled: Any, poll: Any, web: PageServer) -> None:
    bench = make_polled(FetchStepUrl(url=web.url + "/?${{ env.TOKEN || 'x' }}"))
    with pytest.raises(ForeignSource, match="and uses env"):
        poll(bench, is_trusted=lambda _: False)
    assert web.requests == []


def test_a_source_of_another_node_that_needs_nothing_of_this_one_is_polled(
    make_polled: Any, poll: Any, web: PageServer
) -> None:
    web.pages["/a"] = Page(body=b'{"id":1}\n')
    assert poll(make_polled(FetchStepUrl(url=f"{web.url}/a")), is_trusted=lambda _: False).records == 1
