"""What SQL of others can reach: every function that Spark knows, each layer of the sandbox alone."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.engine import FLIGHTS, VOCAB, sql

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.errors import InvalidInput, InvalidQuery, OdfError
from odf_common.metadata.engine_messages import RawQueryRequest
from odf_common.metadata.events import DatasetVocabulary
from odf_common.ports.engine import QueryTable
from odf_engine_spark.analysis.sandbox import check_query, check_transform, check_written
from odf_engine_spark.plan.prepared import parse_query
from odf_engine_spark.spark.error_messages import FAULTS
from odf_engine_spark.spark.jvm import Java, Spark, tree_of
from odf_engine_spark.spark.listed_functions import (
    AD_HOC_CLASSES,
    AD_HOC_FUNCTIONS,
    ALLOWED_CLASSES,
    ALLOWED_FUNCTIONS,
    OPTIONS,
    REFUSED,
    REFUSED_CLASSES,
    REFUSED_FUNCTIONS,
)

Place = Callable[[str], object]
CANARY = "canary-5521"
SECURE_PROCESSING = "http://javax.xml.XMLConstants/feature/secure-processing"
ANALYSIS = "org.apache.spark.sql.catalyst.analysis"
# Options of Spark that name files and codecs, are about whole files, or make the parser of XML another one.
CLOSED_OPTIONS = {
    "from_json": "charset compression enableDateTimeParsingFallback encoding explodeEmbeddedArray lineSep "
    "multiLine samplingRatio useUnsafeRow",
    "from_csv": "charset codec columnPruning compression enableDateTimeParsingFallback encoding enforceSchema extension header "
    "inputBufferSize lineSep maxCharsPerColumn maxColumns multiLine samplingRatio",
    "to_xml": "charset columnNameOfCorruptRecord compression encoding excludeAttribute ignoreNamespace "
    "ignoreSurroundingSpaces inferSchema multiLine preferDate prefersDecimal rowValidationXSDPath samplingRatio "
    "singleVariantColumn useLegacyXMLParser validateName wildcardColName",
}


@dataclass(frozen=True, slots=True)
class Listener:
    """A server on loopback that accepts everything and answers nothing."""

    port: int
    connections: list[object]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def listening() -> Iterator[Listener]:
    connections: list[object] = []

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            connections.append(self.client_address)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield Listener(server.server_address[1], connections)
        server.shutdown()


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as found:
        yield found


@pytest.fixture
def places(engine: EngineClient, tmp_path: Path) -> Mapping[str, Place]:
    """The three places where SQL runs, as functions of an expression over a row."""
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"city": ["Oslo"]}), source)
    slice_ = tmp_path / "slice.parquet"
    pq.write_table(pa.table({"offset": pa.array([0], pa.uint64()), "city": ["Oslo"]}), slice_)
    table = QueryTable(name="t", schema=pq.read_schema(slice_), data_paths=(str(slice_),))

    def transform(expression: str) -> object:
        query = f"SELECT time_hour AS event_time, {expression} AS x FROM flights"
        return engine.validate(sql(query), {"flights": FLIGHTS}, {"flights": VOCAB}, DatasetVocabulary())

    def preprocess(expression: str) -> object:
        step = sql(f"SELECT {expression} AS x FROM input")
        request = RawQueryRequest(input_data_paths=(str(source),), transform=step, output_data_path=str(out))
        engine.execute_raw_query(request)
        return pq.read_table(out).to_pylist()

    def ad_hoc(expression: str) -> object:
        return engine.query(f"SELECT {expression} AS x FROM t", (table,)).to_pylist()

    return {"transform": transform, "preprocess": preprocess, "ad hoc": ad_hoc}


def test_each_function_of_spark_is_classified_once(all_functions: Mapping[str, Java]) -> None:
    assert set(all_functions) == ALLOWED_FUNCTIONS | set(REFUSED_FUNCTIONS)
    assert not ALLOWED_FUNCTIONS & set(REFUSED_FUNCTIONS)
    assert not ALLOWED_CLASSES & set(REFUSED_CLASSES)
    for name, info in all_functions.items():
        kind = str(info.getClassName()).rpartition(".")[2]
        restricted = REFUSED_CLASSES if name in REFUSED_FUNCTIONS else AD_HOC_CLASSES
        is_restricted = name in REFUSED_FUNCTIONS or name in AD_HOC_FUNCTIONS
        # A builder is in no plan, the classes that it builds are listed.
        assert kind.endswith("Builder") or kind in (restricted if is_restricted else ALLOWED_CLASSES), name
        assert kind.endswith("Builder") or (kind in restricted) == is_restricted, name


def test_examples_of_allowed_functions_pass(spark: Spark, all_functions: Mapping[str, Java]) -> None:
    passed, session = 0, spark.new_session()
    for name in sorted(ALLOWED_FUNCTIONS):
        for query in re.findall(r"> (SELECT .*?);\n", str(all_functions[name].getExamples())):
            if any(f"{refused}(" in query for refused in REFUSED_FUNCTIONS):
                continue
            with suppress(*FAULTS):  # of a feature that is off, such as the type TIME
                check_query(
                    tree_of(session.frame(parse_query(session, query)[0]).queryExecution().analyzed())
                )
                passed += 1
    assert passed > 500


def test_each_option_of_a_function_is_classified(spark: Spark) -> None:
    formats = {"from_json": "json.JSONOptions", "from_csv": "csv.CSVOptions", "to_xml": "xml.XmlOptions"}
    for function, options in formats.items():
        names = spark.singleton(f"org.apache.spark.sql.catalyst.{options}").getAllOptions().mkString(" ")
        assert set(names.split()) == OPTIONS[function] | set(CLOSED_OPTIONS[function].split()), function


@pytest.mark.parametrize("function", sorted(name for part in REFUSED for name in part.functions.split()))
def test_a_refused_function_is_named_with_its_reason_wherever_sql_runs(
    places: Mapping[str, Place], function: str
) -> None:
    name = function.partition(":")[0]
    if name == "python_worker_logs":
        return  # a table function, see below
    for place, run in places.items():
        with pytest.raises(InvalidInput) as caught:
            run(f"{name}(city)")
        assert caught.value.code == "InvalidQuery", place
        assert str(caught.value).endswith(f"{name}: {REFUSED_FUNCTIONS[name]}"), place


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM t, LATERAL {call} AS u",
        "SELECT * FROM VALUES ({call}) AS u(x)",
        "SELECT count(*) FROM t GROUP BY {call}",
        "SELECT count(*) FROM t HAVING max({call}) = ''",
        "SELECT count(*) FROM t ORDER BY max({call})",
        "SELECT sum(1) OVER w FROM t WINDOW w AS (ORDER BY {call})",
        "SELECT * FROM t JOIN t AS u ON t.city = {call}",
        "SELECT * FROM t LATERAL VIEW explode(array({call})) u AS x",
        "SELECT transform(array(city), e -> {call}) FROM t",
        "SELECT * FROM t WHERE city IN (SELECT {call})",
        "SELECT count(*) FILTER (WHERE {call} = '') FROM t",
        "SELECT * FROM (SELECT city, 1 AS n FROM t) PIVOT (max({call}) FOR n IN (1))",
        "WITH u AS (SELECT {call} AS x FROM t) SELECT * FROM u",
        "SELECT IDENTIFIER('xpath' || '_string')('<a/>', city) FROM t",
        "SELECT `xpath_string`('<a/>', city) FROM t",
        "SELECT system.builtin.xpath_string('<a/>', city) FROM t",
        "SELECT XPATH_String('<a/>', city) FROM t",
        "SELECT * FROM python_worker_logs()",
        "FROM t |> SELECT {call} AS x",
    ],
)
def test_a_refused_function_does_not_exist_however_it_is_written(
    spark: Spark, engine: EngineClient, tmp_path: Path, query: str
) -> None:
    file = tmp_path / "slice.parquet"
    pq.write_table(pa.table({"city": ["Oslo"]}), file)
    table = QueryTable(name="t", schema=pq.read_schema(file), data_paths=(str(file),))
    text = query.format(call="xpath_string('<a/>', 'a')")
    with pytest.raises(InvalidInput) as caught:
        engine.query(text, (table,))
    assert caught.value.code == "InvalidQuery"
    isolated = spark.new_session()
    isolated.frame(isolated.relation(pq.read_table(file))).createOrReplaceTempView("t")
    with pytest.raises(Exception, match=r"xpath|[Rr]esol"):  # the registry alone
        isolated.frame(isolated.parse(text)).queryExecution().analyzed()


def hostile_arguments(listener: Listener, secret: Path) -> tuple[str, ...]:
    secret.write_text(CANARY)
    return (
        f"'<!DOCTYPE a SYSTEM \"{listener.url}/d\"><a>&p;</a>'",
        f"'{secret}'",
        f"map('rowValidationXSDPath', '{listener.url}/s', 'path', '{secret}')",
        f"'{listener.url}/x'",
    )


def test_no_call_of_any_function_reaches_the_network_or_a_file(
    spark: Spark, all_functions: Mapping[str, Java], listener: Listener, tmp_path: Path
) -> None:
    hostile = hostile_arguments(listener, tmp_path / "secret.txt")
    session = spark.new_session()
    session.session.conf.set("spark.sql.codegen.wholeStage", "false")  # of no use for one row
    session.session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    for number, name in enumerate(sorted(all_functions)):
        arguments = [hostile[(number + position) % len(hostile)] for position in range(1 + number % 2)]
        answer = _answer(session, f"SELECT `{name}`({', '.join(arguments)}) AS x")
        assert CANARY not in answer, (name, arguments)
    assert not listener.connections


@pytest.mark.soak
def test_no_call_of_any_function_reaches_them_wherever_sql_runs(
    all_functions: Mapping[str, Java], places: Mapping[str, Place], listener: Listener, tmp_path: Path
) -> None:
    hostile = hostile_arguments(listener, tmp_path / "secret.txt")
    for (number, name), arity in product(enumerate(sorted(all_functions)), (1, 2, 3)):
        for place, run in places.items():
            arguments = [hostile[(number + arity + position) % len(hostile)] for position in range(arity)]
            try:
                answer = str(run(f"`{name}`({', '.join(arguments)})"))
            except OdfError as error:
                answer = str(error)
            assert CANARY not in answer, (place, name, arguments)
    assert not listener.connections


def _answer(spark: Spark, query: str) -> str:
    """Run a query as the engine does for ad-hoc queries; return its result, or its error."""
    try:
        frame = spark.frame(parse_query(spark, query)[0])
        check_query(tree_of(frame.queryExecution().analyzed()))
        return str(spark.collect(frame).to_pylist())
    except (InvalidQuery, *FAULTS) as error:
        return str(error)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            "from_json(city, 'a INT', map('path', '/etc/passwd'))",
            "from_json: option path is not one of allow",
        ),
        (
            "from_json(city, 'a INT', map(concat('mo', 'de'), 'FAILFAST'))",
            "from_json: write its options as map(",
        ),
        (
            "to_xml(struct(city), map('rowValidationXSDPath', 'x'))",
            "to_xml: option rowValidationXSDPath is not",
        ),
        ("from_csv(city, 'a INT', options => map('codec', 'x'))", "from_csv: option codec is not one of"),
    ],
)
def test_only_listed_options_are_taken(places: Mapping[str, Place], call: str, says: str) -> None:
    for run in places.values():
        with pytest.raises(InvalidInput) as caught:
            run(call)
        assert str(caught.value).startswith(says)


NAMES = (
    "'{}'",
    "'{:.2}' || substr('{}', 3)",
    "upper('{}')",
    "'`{}`'",
    "'system.builtin.{}'",
    "coalesce(NULL, '{}')",
)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_named_by_a_computed_string(places: Mapping[str, Place], name: str) -> None:
    def named(function: str) -> str:
        return f"IDENTIFIER({name.format(function, function)})"

    calls = (
        f"{named('xpath')}('<a/>', 'a')",
        f"{named('from_json')}(city, 'a INT', map('path', '/etc/passwd'))",
        f"from_json(city, 'a INT', {named('map')}('path', '/etc/passwd'))",
        "(SELECT max(city) FROM IDENTIFIER('t' || ''))",  # a literal becomes the name when it is parsed
        named("city"),
    )
    for run, call in product(places.values(), calls):
        with pytest.raises(InvalidInput, match=r"IDENTIFIER\(…\) cannot be used: write the name itself"):
            run(call)


@pytest.mark.parametrize("function", ["`{}`", "system.builtin.{}", "`System`.BUILTIN.`{}`", "builtin.{}"])
def test_a_qualified_or_quoted_name_is_refused_like_a_plain_one(
    places: Mapping[str, Place], function: str
) -> None:
    for run in places.values():
        with pytest.raises(InvalidInput, match="xpath: reads XML"):
            run(f"{function.format('XPath')}('<a/>', 'a')")
        with pytest.raises(InvalidInput, match="from_json: option path is not one of"):
            run(f"{function.format('From_Json')}(city, 'a INT', {function.format('Map')}('path', 'x'))")


UDT = '{"type":"udt","class":"java.lang.Object","pyClass":"x","sqlType":"string"}'
DEFAULT = '{"EXISTS_DEFAULT":"uuid()","CURRENT_DEFAULT":"uuid()"}'
FIELD = '{{"type":"struct","fields":[{{"name":"a","type":{},"nullable":true,"metadata":{}}}]}}'


OF_CLASS, WITH_DEFAULT = FIELD.format(UDT, "{}"), FIELD.format('"string"', DEFAULT)


@pytest.mark.parametrize(
    "schema",
    [
        f"'{OF_CLASS}'",
        f"' {WITH_DEFAULT}'",
        f"schema => '{OF_CLASS}'",
        "'\"string\"'",
        f"'{{' || '{OF_CLASS[1:]}'",
    ],
)
def test_no_schema_names_a_class_or_hides_an_expression(places: Mapping[str, Place], schema: str) -> None:
    for function, run in product(("from_json", "from_csv"), places.values()):
        with pytest.raises(
            InvalidInput, match=f"{function}: write its schema as a string such as 'id BIGINT"
        ):
            run(f"{function}(city, {schema})")


def test_schemas_are_written_as_columns_or_taken_from_a_sample(places: Mapping[str, Place]) -> None:
    sample = """from_json('{"a": 1}', schema_of_json('{"a": 1}')).a"""
    assert places["ad hoc"](sample) == [{"x": 1}]
    assert places["ad hoc"]("from_json('[1]', 'ARRAY<INT>')[0]") == [{"x": 1}]
    assert places["ad hoc"]("from_csv('1', 'a INT').a") == [{"x": 1}]


def test_listed_options_are_taken_in_any_case(places: Mapping[str, Place]) -> None:
    call = "from_json('{\"a\": 01}', 'a INT', map('ALLOWNumericLeadingZeros', 'true')).a"
    assert places["ad hoc"](call) == [{"x": 1}]
    places["transform"](call)
    assert places["ad hoc"]("to_json(map('path', 1))") == [{"x": '{"path":1}'}]


@pytest.mark.parametrize("text", ["${env:HOME}", "${system:user.home}", "${spark.app.name}", "${hiveconf:x}"])
def test_the_text_of_a_query_is_not_substituted(spark: Spark, places: Mapping[str, Place], text: str) -> None:
    assert places["ad hoc"](f"'{text}'") == [{"x": text}]
    assert places["preprocess"](f"'{text}'") == [{"x": text}]
    values = [
        node.fields["value"]
        for node in tree_of(spark.parse(f"SELECT '{text}'")).walk()
        if node.kind == "Literal"
    ]
    assert values == [text], "a transform is parsed by the same parser"


@contextmanager
def registered(spark: Spark, name: str) -> Iterator[Spark]:
    """A session in which a removed function exists: the first layer of the sandbox is gone."""
    session = spark.new_session()
    expressions = spark.singleton(f"{ANALYSIS}.FunctionRegistry").expressions()
    info, builder = expressions.apply(name)._1(), expressions.apply(name)._2()
    some = spark.classes("scala").Some
    identifier = spark.classes("org.apache.spark.sql.catalyst").FunctionIdentifier(
        name, some("builtin"), some("system")
    )
    session.java.sessionState().functionRegistry().registerFunction(identifier, info, builder)
    yield session


CALLS = {
    "xpath_string": "xpath_string('<!DOCTYPE a SYSTEM \"{url}/d\"><a>&p;</a>', 'a')",
    "from_xml": "from_xml('<a>1</a>', 'b STRING', map('rowValidationXSDPath', '{url}/s'))",
    "schema_of_xml": "schema_of_xml('<a>1</a>', map('rowValidationXSDPath', '{url}/s'))",
}


@pytest.mark.parametrize("name", CALLS)
def test_the_classes_of_a_plan_alone_refuse_a_function(spark: Spark, name: str) -> None:
    with registered(spark, name) as session:
        frame = session.frame(session.parse(f"SELECT {CALLS[name].format(url='x')}"))
        tree = tree_of(frame.queryExecution().analyzed())
    for check in (check_query, check_transform):
        with pytest.raises(InvalidQuery):
            check(tree)


@pytest.mark.parametrize("name", CALLS)
def test_the_names_in_a_query_alone_refuse_a_function(spark: Spark, name: str) -> None:
    tree = tree_of(spark.parse(f"SELECT {CALLS[name].format(url='x')}"))
    with pytest.raises(InvalidQuery, match=f"{name}: reads XML"):
        check_written(tree)


@pytest.mark.parametrize("name", CALLS)
def test_the_jvm_alone_opens_no_connection(spark: Spark, listener: Listener, name: str) -> None:
    with registered(spark, name) as session, suppress(Exception):
        session.collect(session.frame(session.parse(f"SELECT {CALLS[name].format(url=listener.url)}")))
    assert not listener.connections


def test_the_jvm_alone_reads_no_file_that_xml_names(spark: Spark, tmp_path: Path) -> None:
    (tmp_path / "secret.dtd").write_text(f'<!ENTITY p "{CANARY}">')
    call = f"SELECT xpath_string('<!DOCTYPE a SYSTEM \"file://{tmp_path}/secret.dtd\"><a>&p;</a>', 'a') AS x"
    with (
        registered(spark, "xpath_string") as session,
        pytest.raises(Exception, match=r"xpath|Error") as caught,
    ):
        session.collect(session.frame(session.parse(call)))
    assert CANARY not in str(caught.value)


def read_tree(spark: Spark, document: str) -> str:
    factory = spark.method("javax.xml.parsers.DocumentBuilderFactory.newInstance")()
    assert factory.getFeature(SECURE_PROCESSING)
    source = spark.classes("org.xml.sax").InputSource(spark.classes("java.io").StringReader(document))
    return str(factory.newDocumentBuilder().parse(source).getDocumentElement().getTextContent())


def read_stream(spark: Spark, document: str) -> str:
    factory = spark.method("javax.xml.stream.XMLInputFactory.newInstance")()
    reader = factory.createXMLStreamReader(spark.classes("java.io").StringReader(document))
    while not reader.isStartElement():
        reader.next()
    return str(reader.getElementText())


@pytest.mark.parametrize("read", [read_tree, read_stream])
def test_no_parser_of_the_jvm_alone_reads_a_file(
    spark: Spark, tmp_path: Path, read: Callable[[Spark, str], str]
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text(CANARY)
    assert read(spark, '<!DOCTYPE a [<!ENTITY p "x">]><a>&p;</a>') == "x"
    with pytest.raises(Exception, match="accessExternalDTD"):
        read(spark, f'<!DOCTYPE a [<!ENTITY p SYSTEM "file://{secret}">]><a>&p;</a>')


@pytest.mark.parametrize("scheme", ["http", "https", "ftp", "jar:http"])
def test_no_address_can_be_opened_in_the_jvm(spark: Spark, listener: Listener, scheme: str) -> None:
    suffix = "x.jar!/y" if scheme.startswith("jar:") else "x"
    address = spark.classes("java.net").URL(f"{scheme}://127.0.0.1:{listener.port}/{suffix}")
    with pytest.raises(Exception, match="Exception"):
        address.openStream()
    assert not listener.connections


def test_spark_adds_no_kinds_of_addresses(spark: Spark) -> None:
    for scheme in ("hdfs", "s3a", "viewfs"):
        with pytest.raises(Exception, match="unknown protocol"):
            spark.classes("java.net").URL(f"{scheme}://host/x")
