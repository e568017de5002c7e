"""Start ingest: `python -m odf_ingest`."""

from odf_common.service.run import run_service
from odf_common.service.without_pandas import forbid_pandas
from odf_ingest.service import build

forbid_pandas()
run_service(build)
