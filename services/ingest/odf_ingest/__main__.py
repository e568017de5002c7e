"""Start ingest: `python -m odf_ingest`."""

from odf_common.service.lean_imports import lean_imports

with lean_imports("pandas", "rich"):
    from odf_common.service.run import run_service
    from odf_ingest.service import build

run_service(build)
