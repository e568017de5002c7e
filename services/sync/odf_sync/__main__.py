"""Starts the sync service: `python -m odf_sync`."""

from odf_common.service.lean_imports import lean_imports

with lean_imports("pandas", "rich"):
    from odf_common.service.run import run_service
    from odf_sync.service import build

run_service(build)
