"""The store raises `Damaged` or `StorageUnavailable`, so no service handles an `OSError` of a dataset's files."""

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

SERVICES = Path(__file__).parents[3] / "services"
OS_ERRORS = {
    name for name, one in vars(builtins).items() if isinstance(one, type) and issubclass(one, OSError)
} - {TimeoutError.__name__}  # of futures
# Files and sockets that are not a dataset's.
OTHER = {
    "odf_coordinator/transforms/held_records.py": "a cache of counts, which each step writes again",
    "odf_coordinator/views/app.py": "the broker's socket",
    "odf_ingest/prepare/preprocess.py": "Arrow's reading of the engine's output",
    "odf_ingest/accepted_pushes.py": "ingest's own receipts",
    "odf_ingest/commit/file_commit.py": "the file of another push",
    "odf_ingest/history/run_store.py": "the index, which is rebuilt",
    "odf_ingest/poll/fetch/container.py": "a command of the source",
    "odf_ingest/poll/fetch/files_glob.py": "files that are polled",
    "odf_ingest/poll/fetch/ftp.py": "sockets",
    "odf_ingest/poll/fetch/url.py": "sockets",
    "odf_ingest/poll/fetch/mqtt_session.py": "sockets",
    "odf_ingest/read/arrow_ipc.py": "Arrow's reading of what was pushed",
    "odf_ingest/read/geo/esri_shapefile.py": "an archive that was pushed",
    "odf_ingest/read/parquet.py": "Arrow's reading of what was pushed",
    "odf_ingest/registry/client.py": "sockets, and a file of certificates",
    "odf_sync/http/connections.py": "a client's socket",
    "odf_sync/http/endpoints.py": "a client's socket",
    "odf_sync/http/head_events.py": "a client's socket",
    "odf_sync/http/ingest_routes.py": "a client's socket",
    "odf_sync/http/object_uploads.py": "a client's socket",
    "odf_sync/http/server.py": "the listening socket",
    "odf_sync/smart/channel.py": "a peer's socket",
    "odf_sync/smart/connection.py": "a peer's socket",
    "odf_sync/transfer/partial_files.py": "a download that can be repeated",
    "odf_sync/webhooks/webhook_servicer.py": "names of receivers",
    "odf_sync/webhooks/sender.py": "sockets",
    "odf_sync/webhooks/webhook_targets.py": "names of receivers",
    "odf_verifier/verification.py": "the verifier's own notes, guarded as a store",
}


def handled(tree: ast.AST) -> Iterator[str]:
    """Iterate over the errors of the operating system that a module catches or raises."""
    for node in ast.walk(tree):
        match node:
            case ast.ExceptHandler(type=ast.expr() as what) | ast.Raise(exc=ast.expr() as what):
                yield from (
                    one.id for one in ast.walk(what) if isinstance(one, ast.Name) and one.id in OS_ERRORS
                )
            case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=what):
                yield from (one.id for one in what if isinstance(one, ast.Name) and one.id in OS_ERRORS)
            case _:
                pass


def test_no_service_handles_an_os_error_of_the_store() -> None:
    modules = [
        file
        for file in SERVICES.glob("*/odf_*/**/*.py")
        if "odf_engine_spark" not in file.parts and not file.stem.startswith("testing")
    ]
    assert len(modules) > 100
    found = {
        "/".join(file.parts[file.parts.index("services") + 2 :])
        for file in modules
        if any(handled(ast.parse(file.read_text())))
    }
    assert found == OTHER.keys()
