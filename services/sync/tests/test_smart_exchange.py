"""Messages, their order, and archives: on any input, an end fails with a protocol error, and remains in a valid state."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from odf_testing.builders import a_hash

from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_sync.smart import archive, message_json
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import COUNTED_BYTES, read_archive, require_countable, write_archive
from odf_sync.smart.exchange import (
    MAX_CLOSE_REASON_BYTES,
    PULL,
    PUSH,
    End,
    ExchangeState,
    ProtocolViolated,
    Side,
    Table,
    TransferRefused,
    close_reason,
    refusal_in,
)
from odf_sync.smart.message_json import PART_CHARS, decode, encode

HASH = physical_hash_of(b"a block")
FILE = msg.ObjectFile(object_type=msg.ObjectType.CHECKPOINT, physical_hash=HASH, size=7)
BATCH = msg.BlocksBatch(num_blocks=1, payload=bytes(range(256)) * 300)
MESSAGES: tuple[msg.Message, ...] = (
    msg.PullRequest(begin_after=HASH, force_update_if_diverged=False),
    msg.PullAccepted(transfer_plan=msg.TransferPlan(num_blocks=1)),
    msg.MetadataRequest(),
    msg.MetadataReply(blocks=BATCH),
    msg.DownloadsRequest(object_files=(FILE,)),
    msg.DownloadsReply(object_transfer_strategies=()),
    msg.PushRequest(
        transfer_plan=msg.TransferPlan(), force_update_if_diverged=True, visibility_for_created_dataset=msg.DatasetVisibility.PUBLIC
    ),
    msg.PushAccepted(),
    msg.NewBlocks(new_blocks=BATCH),
    msg.BlocksAccepted(),
    msg.UploadsRequest(object_files=(FILE, FILE), is_truncated=True),
    msg.UploadsRequest(object_files=(), is_truncated=False),
    msg.UploadsReply(
        object_transfer_strategies=(
            msg.Upload(object_file=FILE, push_strategy=msg.PushStrategy.HTTP_UPLOAD, upload_to=msg.TransferUrl(url="http://x")),
        )
    ),
    msg.ProgressRequest(),
    msg.UploadsRunning(uploaded_objects_count=2),
    msg.UploadsComplete(),
    msg.CompleteRequest(),
    msg.PushConfirmed(),
    msg.Refusal(fault=msg.InvalidHead(actual_head=None, expected_head=HASH)),
)  # fmt: skip

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["Ok", "Err", "details", "blocks", "payload", "begin_after"]), inner
        )
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_a_message_survives_a_round_trip(message: msg.Message) -> None:
    assert decode(encode(message), (type(message),)) == message


def test_absent_options_may_be_missing_and_unknown_fields_are_ignored() -> None:
    text = '{"force_update_if_diverged":true,"later":[{}]}'
    assert decode(text, (msg.PullRequest,)) == msg.PullRequest(force_update_if_diverged=True)


def test_a_visibility_may_be_in_lower_case() -> None:
    text = encode(MESSAGES[6]).replace('"Public"', '"public"')
    assert decode(text, (msg.PushRequest,)) == MESSAGES[6]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{", "message"),
        ("[" * 100_000, "message"),
        ("[]", "message"),
        ('{"begin_after":"f1620","force_update_if_diverged":false}', "message.begin_after"),
        ('{"begin_after":null}', "message"),
        ('{"force_update_if_diverged":1}', "message.force_update_if_diverged"),
    ],
)  # fmt: skip
def test_an_unreadable_message_is_named(text: str, where: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        End(side=Side.SERVER, table=PULL).receive(text)
    assert refused.value.where == where


def test_a_message_has_a_limit_of_values_that_its_archive_does_not_count_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Short JSON such as `[[],[],…` takes thirty times its length in memory."""
    reply = msg.MetadataReply(blocks=replace(BATCH, payload=bytes(1000)))
    monkeypatch.setattr(message_json, "MAX_VALUES", 10)
    assert decode(encode(reply), [msg.MetadataReply]) == reply
    for nested in ("[[]" + ",[]" * 10 + "]", "[{}" + ",{}" * 10 + "]", "[1" + ",1" * 10 + "]"):
        with pytest.raises(InvalidInput, match="at most 10 are taken"):
            decode(f'{{"blocks":{nested}}}', [msg.MetadataReply])


FILES: Final = tuple(
    msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=a_hash(str(number)), size=number)
    for number in range(20)
)
LISTS: Final = (
    msg.DownloadsRequest(object_files=FILES),
    msg.UploadsRequest(object_files=FILES, is_truncated=True),
)


@pytest.mark.parametrize("message", LISTS)
@pytest.mark.parametrize("indent", [None, 1])
def test_the_objects_of_a_list_are_kept_as_they_are_read(
    message: msg.DownloadsRequest | msg.UploadsRequest, indent: int | None
) -> None:
    text = json.dumps(json.loads(encode(message)), indent=indent)
    assert decode(text, [type(message)]) == message
    for item in ('{"x":{}}', "[]", "1"):
        with pytest.raises(InvalidInput, match=r"object_files\[0\]"):
            decode(json.dumps(json.loads(text) | {"object_files": [json.loads(item)]}), [type(message)])


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ('"size":3}', '"size":-3}', "object_file.size"),
        ('"size":3}', '"size":}', "message"),
        ('"size":3}', '"size":3,}', "message"),
        ('"size":3}', '"size":' + "9" * 1900 + "}", "object_file.size"),
        ('"size":3},', '"size":3}', "message"),
        ('"size":19}', '"size":19},', "message"),
        ('"size":19}]', '"size":19}', "message"),
        (',"size":3}', "}", "object_file.size"),
    ],
)
def test_a_fault_in_a_list_of_objects_is_named(old: str, new: str, where: str) -> None:
    text = encode(LISTS[0])
    assert old in text
    with pytest.raises(InvalidInput) as refused:
        decode(text.replace(old, new, 1), [msg.DownloadsRequest])
    assert refused.value.where == where


@pytest.mark.parametrize(
    "files", ["[]", "[ ]", '[{"object_type":"DataSlice","physical_hash":"%s","size":7}]']
)
def test_short_lists_of_objects_are_read(files: str) -> None:
    text = f'{{"unknown":{{}},"object_files":{files.replace("%s", str(a_hash("7")))},"later":[1]}}'
    expected = FILES[7:8] if "%s" in files else ()
    assert decode(text, [msg.DownloadsRequest]) == msg.DownloadsRequest(object_files=expected)


@pytest.mark.parametrize(
    "payload", ["[1,2,256]", "[1,2,]", "[1,,2]", "[,]", '["a"]', "[1.0]", "[-1]", "7", "[1 2]"]
)
def test_an_archive_that_is_not_a_list_of_bytes_is_refused(payload: str) -> None:
    text = encode(msg.MetadataReply(blocks=msg.BlocksBatch(num_blocks=1, payload=b"\1"))).replace(
        "[1]", payload
    )
    with pytest.raises(InvalidInput, match=r"not a message|expected bytes"):
        decode(text, (msg.MetadataReply,))


@pytest.mark.parametrize("payload", ["[]", "[ ]", "[\n]"], ids=["nothing", "space", "newline"])
def test_an_archive_may_be_empty(payload: str) -> None:
    text = encode(msg.MetadataReply(blocks=msg.BlocksBatch(num_blocks=0, payload=b""))).replace("[]", payload)
    assert decode(text, (msg.MetadataReply,)) == msg.MetadataReply(
        blocks=msg.BlocksBatch(num_blocks=0, payload=b"")
    )


def test_a_long_archive_does_not_end_in_a_comma() -> None:
    reply = msg.MetadataReply(blocks=msg.BlocksBatch(num_blocks=1, payload=bytes(PART_CHARS // 2 + 1)))
    text = encode(reply)
    assert decode(text, (msg.MetadataReply,)) == reply
    with pytest.raises(InvalidInput, match="not a message"):
        decode(text.replace("0]", "0,]"), (msg.MetadataReply,))


@given(
    st.lists(st.sampled_from(range(len(MESSAGES))) | JSON.map(repr), max_size=12), st.sampled_from(list(Side))
)
def test_messages_in_any_order_raise_nothing_but_a_protocol_error(steps: list[int | str], side: Side) -> None:
    for table in (PULL, PUSH):
        end = End(side=side, table=table)
        for step in steps:
            text = encode(MESSAGES[step]) if isinstance(step, int) else step
            try:
                end.receive(text)
            except ProtocolViolated:
                assert end.state is ExchangeState.FAILED
            assert isinstance(end.phase, msg.Phase)


@given(st.data())
def test_two_ends_agree_on_the_state_after_every_message(data: st.DataObject) -> None:
    table = data.draw(st.sampled_from([PULL, PUSH]))
    ends = {side: End(side=side, table=table) for side in Side}
    for _ in range(20):
        turns = table.get(ends[Side.CLIENT].state, ())
        if not turns:
            return
        turn = data.draw(st.sampled_from(turns))
        message = next(one for one in MESSAGES if turn.fits(one))
        other = Side.SERVER if turn.sender is Side.CLIENT else Side.CLIENT
        ends[turn.sender].note_sent(message)
        assert ends[other].receive(encode(message)) == message
        assert ends[Side.CLIENT].state is ends[Side.SERVER].state


def test_progress_requests_and_responses_may_arrive_late() -> None:
    running, complete = msg.UploadsRunning(uploaded_objects_count=2), msg.UploadsComplete()
    for state in (ExchangeState.READY, ExchangeState.UPLOADED):
        client = End(side=Side.CLIENT, table=PUSH, state=state)
        assert client.receive("{}") == msg.ProgressRequest()
        server = End(side=Side.SERVER, table=PUSH, state=state)
        assert [server.receive(encode(one)) for one in (running, complete)] == [running, complete]
        assert (client.state, server.state) == (state, state)


@pytest.mark.parametrize(
    ("table", "state", "phase"),
    [
        (PULL, ExchangeState.START, msg.Phase.PULL_INITIAL),
        (PULL, ExchangeState.READY, msg.Phase.PULL_OBJECTS),
        (PUSH, ExchangeState.START, msg.Phase.PUSH_INITIAL),
        (PUSH, ExchangeState.ACCEPTED, msg.Phase.PUSH_METADATA),
        (PUSH, ExchangeState.READY, msg.Phase.PUSH_OBJECTS),
        (PUSH, ExchangeState.LAST_UPLOADING, msg.Phase.PUSH_UPLOADS),
        (PUSH, ExchangeState.UPLOADED, msg.Phase.PUSH_COMPLETE),
    ],
)
def test_a_message_that_cannot_be_read_is_a_fault_of_its_step(
    table: Table, state: ExchangeState, phase: msg.Phase
) -> None:
    end = End(side=Side.SERVER, table=table, state=state)
    with pytest.raises(ProtocolViolated):
        end.receive("[]")
    assert (end.state, end.phase) == (ExchangeState.FAILED, phase)


AWAITED_BY_THE_CLIENT = [
    (PULL, state)
    for state in (ExchangeState.REQUESTED, ExchangeState.BLOCKS_REQUESTED, ExchangeState.OBJECTS_LISTED)
] + [
    (PUSH, state)
    for state in (
        ExchangeState.REQUESTED,
        ExchangeState.BLOCKS_SENT,
        ExchangeState.OBJECTS_LISTED,
        ExchangeState.COMPLETING,
    )
]


@pytest.mark.parametrize(("table", "state"), AWAITED_BY_THE_CLIENT)
@pytest.mark.parametrize(
    ("error", "text"),
    [
        ('{"Internal":{"phase":{"Push":"CompleteRequest"},"error_message":"boom"}}', "boom"),
        ('{"Internal":{"phase":{"Push":"Later"},"error_message":"boom"}}', "boom"),
        ('{"Internal":{"error_message":"boom"}}', "boom"),
        ('{"QuotaExceeded":{"used":7}}', "QuotaExceeded"),
        ('"Overloaded"', "Overloaded"),
        ("null", "null"),
    ],
)  # fmt: skip
def test_an_error_is_a_refusal_at_any_step_and_never_a_confirmation(
    table: Table, state: ExchangeState, error: str, text: str
) -> None:
    end = End(side=Side.CLIENT, table=table, state=state)
    refusal = end.receive(f'{{"Err":{error}}}')
    assert isinstance(refusal, msg.Refusal)
    assert text in str(TransferRefused(fault=refusal.fault))
    assert end.state is ExchangeState.FAILED


@pytest.mark.parametrize(
    "fault",
    [
        msg.Internal(phase=msg.Phase.PUSH_TARGET, error_message="Straße " * 100),
        msg.Internal(phase=msg.Phase.PULL_INITIAL, error_message='"\\' * 100),
        msg.RefCollision(dataset_id="did:odf:f" + "0" * 68),
        msg.NameCollision(dataset_alias="a" * 300),
    ],
    ids=["long", "escaped", "id", "name"],
)
def test_the_reason_of_a_close_frame_is_whole_and_fits(
    fault: msg.Internal | msg.RefCollision | msg.NameCollision,
) -> None:
    reason = close_reason(msg.Refusal(fault=fault))
    assert len(reason) <= MAX_CLOSE_REASON_BYTES
    assert refusal_in(reason.decode()) is not None


@pytest.mark.parametrize("size", [MAX_CLOSE_REASON_BYTES - 1, MAX_CLOSE_REASON_BYTES])
def test_a_reason_that_just_fits_is_sent_whole(size: int) -> None:
    def refusal(text: str, *, is_name: bool) -> msg.Refusal:
        internal = msg.Internal(phase=msg.Phase.PUSH_TARGET, error_message=text)
        return msg.Refusal(fault=msg.NameCollision(dataset_alias=text) if is_name else internal)

    for is_name in (True, False):
        rest = size - len(encode(refusal("", is_name=is_name)))
        exact = refusal("a" * rest, is_name=is_name)
        assert close_reason(exact).decode() == encode(exact)


def archive_of(*contents: bytes) -> bytes:
    out = io.BytesIO()
    write_archive([(physical_hash_of(one), one) for one in contents], out)
    return out.getvalue()


def read(archive: bytes, count: int, limit: int = 10_000) -> list[tuple[Multihash, bytes]]:
    return list(read_archive(io.BytesIO(archive), count=count, limit=limit))


def test_an_archive_holds_the_blocks_in_their_order() -> None:
    contents = [b"", b"x" * 511, b"y" * 512, b"z" * 513]
    archive = archive_of(*contents)
    assert [raw for _, raw in read(archive, 4)] == contents
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert tar.getnames() == [str(physical_hash_of(one)) for one in contents]


@pytest.mark.parametrize(
    ("form", "facts"),
    [
        (tarfile.PAX_FORMAT, {"mtime": 1234.5}),
        (tarfile.PAX_FORMAT, {"uname": "jörg"}),
        (tarfile.GNU_FORMAT, {"uname": "jörg"}),
        (tarfile.USTAR_FORMAT, {"mtime": 1234, "mode": 0o600}),
        (tarfile.GNU_FORMAT, {"type": tarfile.AREGTYPE}),
    ],
)  # fmt: skip
def test_archives_of_other_programs_are_read(form: int, facts: dict[str, Any]) -> None:
    contents = [b"", b"x" * 511, b"y" * 512]
    with tarfile.open(fileobj=(out := io.BytesIO()), mode="w:gz", format=form) as tar:
        for one in contents:
            entry = tarfile.TarInfo(str(physical_hash_of(one)))
            entry.size = len(one)
            for name, value in facts.items():
                setattr(entry, name, value)
            tar.addfile(entry, io.BytesIO(one))
    assert [raw for _, raw in read(out.getvalue(), 3)] == contents


def extended_headers(count: int) -> bytes:
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, tarfile.BLOCKSIZE
    return gzip.compress((header.tobuf(tarfile.GNU_FORMAT) + bytes(tarfile.BLOCKSIZE)) * count)


def other_file(name: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.type = kind
        tar.addfile(entry)
    return out.getvalue()


@pytest.mark.parametrize(
    ("archive", "why"),
    [
        (lambda: archive_of(b"a"), "1 blocks, but 2 announced"),
        (lambda: archive_of(b"a", b"b", b"c"), "more than the 2 blocks"),
        (lambda: archive_of(b"a", b"a"), "occurs twice"),
        (lambda: archive_of(b"a" * 9000, b"b" * 9000), "at least 18000 bytes of blocks, but at most 10000"),
        (lambda: archive_of(b"a" * 20_000), "at least 20000 bytes of blocks, but at most 10000 announced"),
        (lambda: archive_of(b"a")[:-20], "not a gzipped tar"),
        (lambda: gzip.compress(b"x" * 2000), "not a gzipped tar"),
        (lambda: gzip.compress(gzip.decompress(archive_of(b"a" * 3000))[:1000]), "cut off"),
        (lambda: b"tar", "not a gzipped tar"),
        (lambda: other_file("../../etc/passwd"), "is not a hash"),
        (lambda: other_file(str(HASH), tarfile.SYMTYPE), "is not a plain file"),
        (lambda: other_file("x" * 300), "is not a hash"),
        (lambda: extended_headers(20), "extended headers of 13312 bytes; 2 blocks may have 12288"),
    ],
)  # fmt: skip
def test_a_hostile_archive_is_refused(archive: Callable[[], bytes], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        read(archive(), 2)


def test_short_blocks_are_counted_by_their_size_in_memory() -> None:
    plan = msg.TransferPlan(num_blocks=80, bytes_in_raw_blocks=200)
    with pytest.raises(
        InvalidInput, match="80 blocks of 200 bytes announced, which count as 10240; at most 10000"
    ):
        require_countable(plan, limit=10_000, counted=COUNTED_BYTES)
    require_countable(plan, limit=80 * COUNTED_BYTES, counted=COUNTED_BYTES)
    with pytest.raises(InvalidInput, match="which count as 10241"):
        require_countable(replace(plan, bytes_in_raw_blocks=10_241), limit=10_240, counted=COUNTED_BYTES)


def test_a_header_that_declares_gigabytes_is_not_trusted() -> None:
    with tarfile.open(fileobj=(out := io.BytesIO()), mode="w:gz") as tar:
        entry = tarfile.TarInfo(str(HASH))
        entry.size = 1 << 40
        tar.fileobj.write(entry.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(InvalidInput, match=f"at least {1 << 40} bytes of blocks, but at most 10000"):
        read(out.getvalue(), 1)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "http://", "http://[::1", "http://a:99999/", "/data/x", ""]
)
def test_an_object_is_fetched_from_and_sent_to_http_urls_only(url: str) -> None:
    with pytest.raises(InvalidInput, match="HTTP URL"):
        msg.TransferUrl(url=url)


@pytest.mark.parametrize(
    ("name", "value"), [("a\nb", "x"), ("", "x"), ("a b", "x"), ("a", "x\r\nHost: y"), ("a", "\u20ac")]
)
def test_a_header_that_cannot_be_sent_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match="not a header"):
        msg.HttpHeader(name=name, value=value)


def test_a_block_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = archive_of(b"a" * 10, b"b" * 11)
    assert len(read(sent, 2)) == 2
    monkeypatch.setattr(archive, "ARCHIVED_BLOCK_LIMIT", 10)
    with pytest.raises(InvalidInput, match="a block of 11 bytes; at most 10 are taken"):
        read(sent, 2)


def test_a_block_that_is_not_looked_at_is_passed_over() -> None:
    contents = [b"x" * 600_000, b"y" * 511]
    packed = io.BytesIO(archive_of(*contents))
    names = [name for name, _, _ in archive.read_signed_archive(packed, count=2, limit=10**6)]
    assert names == [physical_hash_of(one) for one in contents]
