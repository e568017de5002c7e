"""Start ingest: `python -m odf_ingest`."""

from odf_common.runtime.service import run_service
from odf_ingest.service import build

run_service(build)
