"""The engine over gRPC: FlatBuffers of the ODF schema inside (spec: Engine Contract; wire-facts §7)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

import pyarrow as pa

from odf_common.adapters.grpc_client import calling, channel
from odf_common.codec.flatbuffers import decode_message, encode_event, encode_message
from odf_common.errors import InvalidQuery, OdfError, Unavailable
from odf_common.metadata.engine import (
    RawQueryRequest,
    RawQueryResponseInternalError,
    RawQueryResponseInvalidQuery,
    RawQueryResponseRoot,
    RawQueryResponseSuccess,
    TransformRequest,
    TransformResponseInternalError,
    TransformResponseInvalidQuery,
    TransformResponseRoot,
    TransformResponseSuccess,
)
from odf_common.metadata.events import SetTransform
from odf_common.metadata.steps import Strings, Transform
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_common.ports.engine import QueryTable, ValidatedQuery
from odf_common.proto.engine import engine_pb2 as pb
from odf_common.proto.engine import engine_pb2_grpc

WORK: Final = 3600.0  # seconds: deadline of one transform or query
ANSWER: Final = 60.0  # seconds: deadline of a check
WHAT: Final = "the engine"

T = TypeVar("T")


class EngineFailed(OdfError):
    """The engine failed; this is not the query's fault."""

    def __init__(self, *, text: str) -> None:
        """Keep the engine's words."""
        super().__init__()
        self.text = text

    def __str__(self) -> str:
        """Return the engine's words."""
        return f"the engine failed: {self.text}"


class EngineClient:
    """Speaks to one engine; it connects with the first call, and again by itself."""

    def __init__(self, address: str) -> None:
        """Remember `host:port`."""
        self._channel = channel(address)
        self._stub = engine_pb2_grpc.EngineStub(self._channel)

    def execute_transform(self, request: TransformRequest) -> TransformResponseSuccess:
        """Perform one step of a transformation."""
        message = pb.TransformRequest(flatbuffer=encode_message(request))
        with calling(WHAT):
            for answer in self._stub.ExecuteTransform(message, timeout=WORK):
                value = decode_message(TransformResponseRoot, answer.flatbuffer).value
                if isinstance(value, TransformResponseSuccess):
                    return value
                if isinstance(value, TransformResponseInvalidQuery):
                    raise InvalidQuery(text=value.message)
                if isinstance(value, TransformResponseInternalError):
                    raise EngineFailed(text=value.message)
        raise Unavailable(what=WHAT, why="the answer was cut off")

    def execute_raw_query(self, request: RawQueryRequest) -> RawQueryResponseSuccess:
        """Preprocess one batch."""
        message = pb.RawQueryRequest(flatbuffer=encode_message(request))
        with calling(WHAT):
            for answer in self._stub.ExecuteRawQuery(message, timeout=WORK):
                value = decode_message(RawQueryResponseRoot, answer.flatbuffer).value
                if isinstance(value, RawQueryResponseSuccess):
                    return value
                if isinstance(value, RawQueryResponseInvalidQuery):
                    raise InvalidQuery(text=value.message)
                if isinstance(value, RawQueryResponseInternalError):
                    raise EngineFailed(text=value.message)
        raise Unavailable(what=WHAT, why="the answer was cut off")

    def validate(
        self,
        transform: Transform,
        inputs: Mapping[str, pa.Schema],
        vocabs: Mapping[str, DatasetVocabulary],
        output_vocab: DatasetVocabulary,
    ) -> ValidatedQuery:
        """Check a transform; with no inputs only its syntax."""
        request = pb.ValidateQueryRequest(
            set_transform=encode_event(SetTransform(inputs=(), transform=transform)),
            inputs=[
                pb.ValidateQueryInput(
                    name=name, schema=schema.serialize().to_pybytes(), vocab=_vocabulary(vocabs[name])
                )
                for name, schema in inputs.items()
            ],
            output_vocab=_vocabulary(output_vocab),
        )
        with calling(WHAT):
            answer = self._stub.ValidateQuery(request, timeout=ANSWER)
        return ValidatedQuery(
            tables=tuple(answer.tables),
            schema=pa.ipc.read_schema(pa.py_buffer(answer.schema)) if answer.schema else None,
            is_stateful=answer.is_stateful,
        )

    def tables_of(self, sql: str) -> Strings:
        """Return the names of tables that an ad-hoc query reads."""
        with calling(WHAT):
            return tuple(self._stub.ValidateQuery(pb.ValidateQueryRequest(sql=sql), timeout=ANSWER).tables)

    def query(self, sql: str, tables: tuple[QueryTable, ...]) -> pa.Table:
        """Answer an ad-hoc query over whole datasets."""
        request = pb.QueryRequest(
            sql=sql,
            tables=[
                pb.QueryTable(
                    name=one.name, schema=one.schema.serialize().to_pybytes(), data_paths=one.data_paths
                )
                for one in tables
            ],
        )
        with calling(WHAT):
            content = b"".join(_chunks(self._stub.Query(request, timeout=WORK)))
        with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
            return reader.read_all()

    def close(self) -> None:
        """Let the connection go."""
        self._channel.close()


def _chunks(answers: Iterable[pb.ArrowChunk]) -> Iterator[bytes]:
    for answer in answers:
        yield answer.ipc


def _vocabulary(vocab: DatasetVocabulary) -> pb.Vocabulary:
    return pb.Vocabulary(
        offset_column=vocab.offset_column,
        operation_type_column=vocab.operation_type_column,
        system_time_column=vocab.system_time_column,
        event_time_column=vocab.event_time_column,
    )
