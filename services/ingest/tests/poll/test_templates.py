from pathlib import Path
from typing import Any

import pytest
from odf_testing.webserver import Page, PageServer

from odf_common.errors import InvalidInput
from odf_common.metadata.events import AddData
from odf_common.metadata.fetching import FetchStepFilesGlob, FetchStepUrl, RequestHeader
from odf_ingest.poll.poll_errors import ForeignSource, NothingAtSource, SourceUnreachable
from odf_ingest.poll.poller import _masking
from odf_ingest.poll.templates import Secrets, fill_in

LINE = b'{"id":1,"v":"a"}\n'
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
        ("${{ env.ABSENT }}", "the environment of the node has no ABSENT; set it"),
        ("${{ env.EMPTY || env.ABSENT }}", "has no EMPTY or ABSENT"),
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
