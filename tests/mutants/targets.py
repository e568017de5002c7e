"""Which modules are mutated, and which tests are nearest to each."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

COMMON: Final = "libs/odf_common/odf_common"
COORDINATOR: Final = "services/coordinator/odf_coordinator"
INGEST: Final = "services/ingest/odf_ingest"
VERIFIER: Final = "services/verifier/odf_verifier"
SYNC: Final = "services/sync/odf_sync"
_COMMON_TESTS: Final = "libs/odf_common/tests"
_COORDINATOR_TESTS: Final = "services/coordinator/tests"
_INGEST_TESTS: Final = "services/ingest/tests"
_SYNC_TESTS: Final = "services/sync/tests"

# Patterns of modules, and the tests that are run for each of them; the quickest come first. The first pattern that
# fits a module counts.
NEAREST: Final[Mapping[str, tuple[str, ...]]] = {
    f"{COMMON}/chain/*.py": (f"{_COMMON_TESTS}/chain", f"{_COMMON_TESTS}/dataset"),
    f"{COMMON}/chain/rules/*.py": (f"{_COMMON_TESTS}/chain",),
    f"{COMMON}/codec/flatbuffers/reader.py": (f"{_COMMON_TESTS}/codec",),
    f"{COMMON}/codec/flatbuffers/untrusted_buffer.py": (f"{_COMMON_TESTS}/codec",),
    f"{COMMON}/data/slice_checks.py": (
        f"{_COMMON_TESTS}/data/test_checks.py",
        f"{_SYNC_TESTS}/test_objects.py",
        f"{_SYNC_TESTS}/test_downloads.py",
    ),
    f"{COMMON}/adapters/local/repositories.py": (f"{_COMMON_TESTS}/adapters/test_repositories.py",),
    f"{COMMON}/adapters/local/[bdr]*.py": (
        f"{_COMMON_TESTS}/adapters/test_local_store.py",
        f"{_COMMON_TESTS}/adapters/test_locks.py",
        f"{_COMMON_TESTS}/adapters/test_durability.py",
        f"{_COMMON_TESTS}/adapters/test_reserve.py",
        f"{_COMMON_TESTS}/adapters/test_os_faults.py",
        f"{_COORDINATOR_TESTS}/test_power_cuts.py",
    ),
    f"{COMMON}/adapters/s3/cache.py": (
        f"{_COMMON_TESTS}/adapters/test_object_cache.py",
        f"{_COMMON_TESTS}/adapters/test_s3_store.py",
    ),
    f"{COMMON}/adapters/s3/location.py": (f"{_COMMON_TESTS}/adapters/test_s3_location.py",),
    f"{COMMON}/adapters/s3/*.py": (
        f"{_COMMON_TESTS}/adapters/test_s3_store.py",
        f"{_COMMON_TESTS}/adapters/test_s3_faults.py",
        f"{_COORDINATOR_TESTS}/test_stores_in_a_bucket.py",
    ),
    f"{COORDINATOR}/commit/[cd]*.py": (
        f"{_COORDINATOR_TESTS}/test_committer.py",
        f"{_COORDINATOR_TESTS}/test_duplicates.py",
        f"{_COORDINATOR_TESTS}/test_dataset_locks.py",
        f"{_COORDINATOR_TESTS}/test_imports.py",
        f"{_COORDINATOR_TESTS}/test_copies.py",
        f"{_COORDINATOR_TESTS}/test_signing.py",
        f"{_COORDINATOR_TESTS}/test_unreadable_datasets.py",
    ),
    f"{COORDINATOR}/operations/import_chain.py": (
        f"{_COORDINATOR_TESTS}/test_imports.py",
        f"{_COORDINATOR_TESTS}/test_committer.py",
        f"{_COORDINATOR_TESTS}/test_references.py",
    ),
    f"{COORDINATOR}/operations/*.py": (
        f"{_COORDINATOR_TESTS}/test_changing.py",
        f"{_COORDINATOR_TESTS}/test_dropped_data.py",
        f"{_COORDINATOR_TESTS}/test_dropping_races.py",
        f"{_COORDINATOR_TESTS}/test_dropping_engines.py",
        f"{_COORDINATOR_TESTS}/test_copies.py",
        f"{_COORDINATOR_TESTS}/test_references.py",
        f"{_COORDINATOR_TESTS}/test_concurrent_pulls.py",
        f"{_COORDINATOR_TESTS}/test_transforms.py",
        f"{_COORDINATOR_TESTS}/test_unreadable_datasets.py",
        f"{_COORDINATOR_TESTS}/test_kills.py",
    ),
    f"{COORDINATOR}/transforms/*.py": (
        f"{_COORDINATOR_TESTS}/test_planner.py",
        f"{_COORDINATOR_TESTS}/test_transforms.py",
        f"{_COORDINATOR_TESTS}/test_slow_transforms.py",
        f"{_COORDINATOR_TESTS}/test_changing.py",
        f"{_COORDINATOR_TESTS}/test_query_evolution.py",
        f"{_COORDINATOR_TESTS}/test_graphs.py",
    ),
    f"{VERIFIER}/*.py": ("services/verifier/tests",),
    f"{SYNC}/access/audit.py": (f"{_SYNC_TESTS}/test_audit.py",),
    f"{SYNC}/access/rate_limits.py": (f"{_SYNC_TESTS}/test_connection_limits.py",),
    f"{SYNC}/access/*.py": (
        f"{_SYNC_TESTS}/test_access_store.py",
        f"{_SYNC_TESTS}/test_who_may_do_what.py",
        f"{_SYNC_TESTS}/test_account_routes.py",
        f"{_SYNC_TESTS}/test_openapi.py",
        f"{_SYNC_TESTS}/test_audit.py",
        f"{_SYNC_TESTS}/test_remote_login.py",
    ),
    f"{SYNC}/http/authorization.py": (
        f"{_SYNC_TESTS}/test_who_may_do_what.py",
        f"{_SYNC_TESTS}/test_endpoints.py",
        f"{_SYNC_TESTS}/test_ingest_routes.py",
        f"{_SYNC_TESTS}/test_smart_pushes.py",
    ),
    f"{SYNC}/http/account_routes.py": (
        f"{_SYNC_TESTS}/test_account_routes.py",
        f"{_SYNC_TESTS}/test_openapi.py",
        f"{_SYNC_TESTS}/test_audit.py",
        f"{_SYNC_TESTS}/test_remote_login.py",
    ),
    f"{SYNC}/http/block_packs.py": (f"{_SYNC_TESTS}/test_packs.py",),
    f"{SYNC}/http/connections.py": (f"{_SYNC_TESTS}/test_connection_limits.py",),
    f"{SYNC}/http/dataset_routes.py": (
        f"{_SYNC_TESTS}/test_simple_protocol.py",
        f"{_SYNC_TESTS}/test_recorded_transfers.py",
    ),
    f"{SYNC}/http/endpoints.py": (
        f"{_SYNC_TESTS}/test_endpoints.py",
        f"{_SYNC_TESTS}/test_audit.py",
        f"{_SYNC_TESTS}/test_who_may_do_what.py",
        f"{_SYNC_TESTS}/test_openapi.py",
        f"{_SYNC_TESTS}/test_connection_limits.py",
    ),
    f"{SYNC}/http/event_routes.py": (f"{_SYNC_TESTS}/test_event_routes.py",),
    f"{SYNC}/http/head_watch.py": (f"{_SYNC_TESTS}/test_event_routes.py", f"{_SYNC_TESTS}/test_webhooks.py"),
    f"{SYNC}/http/ingest_*.py": (f"{_SYNC_TESTS}/test_ingest_routes.py",),
    f"{SYNC}/http/list_routes.py": (f"{_SYNC_TESTS}/test_list_routes.py",),
    f"{SYNC}/http/object_uploads.py": (
        f"{_SYNC_TESTS}/test_uploads.py",
        f"{_SYNC_TESTS}/test_smart_pushes.py",
    ),
    f"{SYNC}/http/open_pushes.py": (
        f"{_SYNC_TESTS}/test_smart_pushes.py",
        f"{_SYNC_TESTS}/test_smart_hostile_clients.py",
    ),
    f"{SYNC}/http/openapi.py": (f"{_SYNC_TESTS}/test_openapi.py",),
    f"{SYNC}/http/smart_protocol/*.py": (
        f"{_SYNC_TESTS}/test_smart_pushes.py",
        f"{_SYNC_TESTS}/test_smart_replays.py",
        f"{_SYNC_TESTS}/test_recorded_transfers.py",
        f"{_SYNC_TESTS}/test_push_checks.py",
        f"{_SYNC_TESTS}/test_smart_hostile_clients.py",
    ),
    f"{SYNC}/private_database.py": (f"{_SYNC_TESTS}/test_access_store.py", f"{_SYNC_TESTS}/test_webhooks.py"),
    f"{SYNC}/repositories/*.py": (
        f"{_SYNC_TESTS}/test_named_places.py",
        f"{_SYNC_TESTS}/test_folder_target.py",
        f"{_SYNC_TESTS}/test_node_client.py",
        f"{_SYNC_TESTS}/test_packs.py",
        f"{_SYNC_TESTS}/test_downloads.py",
        f"{_SYNC_TESTS}/test_simple_protocol.py",
        f"{_SYNC_TESTS}/test_s3_repository.py",
        f"{_SYNC_TESTS}/test_s3_pushes.py",
        f"{_SYNC_TESTS}/test_smart_pushes.py",
        f"{_SYNC_TESTS}/test_recorded_transfers.py",
        f"{_SYNC_TESTS}/test_smart_replays.py",
    ),
    f"{SYNC}/search/*.py": (f"{_SYNC_TESTS}/test_search.py", f"{_SYNC_TESTS}/test_list_routes.py"),
    f"{SYNC}/smart/*.py": (
        f"{_SYNC_TESTS}/test_smart_pushes.py",
        f"{_SYNC_TESTS}/test_smart_replays.py",
        f"{_SYNC_TESTS}/test_recorded_transfers.py",
        f"{_SYNC_TESTS}/test_smart_exchange.py",
    ),
    f"{SYNC}/transfer/*.py": (
        f"{_SYNC_TESTS}/test_objects.py",
        f"{_SYNC_TESTS}/test_push_checks.py",
        f"{_SYNC_TESTS}/test_node_client.py",
        f"{_SYNC_TESTS}/test_pull_places.py",
        f"{_SYNC_TESTS}/test_pull_commits.py",
        f"{_SYNC_TESTS}/test_restoring.py",
        f"{_SYNC_TESTS}/test_named_places.py",
        f"{_SYNC_TESTS}/test_folder_target.py",
        f"{_SYNC_TESTS}/test_folder_pushes.py",
        f"{_SYNC_TESTS}/test_downloads.py",
        f"{_SYNC_TESTS}/test_packs.py",
        f"{_SYNC_TESTS}/test_simple_protocol.py",
        f"{_SYNC_TESTS}/test_smart_pushes.py",
        f"{_SYNC_TESTS}/test_uploads.py",
        f"{_SYNC_TESTS}/test_partial_files.py",
        f"{_SYNC_TESTS}/test_forced_pulls.py",
        f"{_SYNC_TESTS}/test_s3_pushes.py",
        f"{_SYNC_TESTS}/test_remote_login.py",
        f"{_SYNC_TESTS}/test_smart_replays.py",
        f"{_SYNC_TESTS}/test_interrupted_transfers.py",
    ),
    f"{SYNC}/webhooks/*.py": (
        f"{_SYNC_TESTS}/test_webhooks.py",
        f"{_SYNC_TESTS}/test_webhook_declarations.py",
    ),
    f"{INGEST}/commit/position.py": (
        f"{_INGEST_TESTS}/test_position.py",
        f"{_INGEST_TESTS}/push/test_file.py",
    ),
    f"{INGEST}/commit/committer.py": (
        f"{_INGEST_TESTS}/push/test_messages.py",
        f"{_INGEST_TESTS}/push/test_file.py",
    ),
    f"{INGEST}/commit/rejects.py": (
        f"{_INGEST_TESTS}/push/test_messages.py",
        f"{_INGEST_TESTS}/test_rejected.py",
        f"{_INGEST_TESTS}/poll/test_bad_rows.py",
        f"{_INGEST_TESTS}/push/test_reader.py",
    ),
    f"{INGEST}/commit/watermark.py": (f"{_INGEST_TESTS}/push/test_watermarks.py",),
    f"{INGEST}/poll/fetch/mqtt*.py": (
        f"{_INGEST_TESTS}/poll/test_mqtt_packets.py",
        f"{_INGEST_TESTS}/poll/test_mqtt.py",
    ),
    f"{INGEST}/poll/fetch/ftp.py": (f"{_INGEST_TESTS}/poll/test_ftp.py",),
    f"{INGEST}/poll/fetch/container.py": (f"{_INGEST_TESTS}/poll/test_container.py",),
    f"{INGEST}/poll/fetch/*.py": (
        f"{_INGEST_TESTS}/poll/test_files_glob.py",
        f"{_INGEST_TESTS}/poll/test_url.py",
        f"{_INGEST_TESTS}/poll/test_ftp.py",
    ),
    f"{INGEST}/poll/unpack/*.py": (f"{_INGEST_TESTS}/poll/test_unpack.py",),
    f"{INGEST}/poll/schedule.py": (
        f"{_INGEST_TESTS}/poll/test_schedule.py",
        f"{_INGEST_TESTS}/poll/test_settings.py",
    ),
    f"{INGEST}/poll/polled_position.py": (
        f"{_INGEST_TESTS}/poll/test_files_glob.py",
        f"{_INGEST_TESTS}/poll/test_bad_rows.py",
        f"{_INGEST_TESTS}/poll/test_container.py",
    ),
    f"{INGEST}/poll/*.py": (f"{_INGEST_TESTS}/poll",),
    f"{INGEST}/prepare/bad_rows.py": (
        f"{_INGEST_TESTS}/poll/test_bad_rows.py",
        f"{_INGEST_TESTS}/push/test_messages.py",
    ),
    f"{INGEST}/push/kafka_batch.py": (
        f"{_INGEST_TESTS}/push/test_messages.py",
        f"{_INGEST_TESTS}/push/test_halves.py",
    ),
    f"{INGEST}/push/start_position.py": (
        f"{_INGEST_TESTS}/push/test_start_position.py",
        f"{_INGEST_TESTS}/push/test_reader.py",
    ),
    f"{INGEST}/registry/*.py": (
        f"{_INGEST_TESTS}/registry",
        f"{_INGEST_TESTS}/push/test_registry_sources.py",
    ),
}
# Wiring that a node needs; no unit test is meant to run it.
LEFT_OUT: Final = frozenset(
    {
        f"{SYNC}/service.py",
        f"{SYNC}/grpc_servicer.py",
        f"{SYNC}/http/server.py",
        f"{VERIFIER}/service.py",
        f"{VERIFIER}/__main__.py",
    }
)


def targets(root: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Iterate over the paths of the modules, each once, with its tests."""
    found = set(LEFT_OUT)
    for pattern, tests in NEAREST.items():
        for file in sorted(root.glob(pattern)):
            path = file.relative_to(root).as_posix()
            if path not in found:
                found.add(path)
                yield path, tests
