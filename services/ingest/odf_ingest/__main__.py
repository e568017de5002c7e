"""Start ingest: `python -m odf_ingest`."""

from odf_common.service.run import run_service
from odf_ingest.service import build

run_service(build)
