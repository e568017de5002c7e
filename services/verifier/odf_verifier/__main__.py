"""Start the verifier: `python -m odf_verifier`."""

from odf_common.service.run import run_service
from odf_common.service.without_pandas import forbid_pandas
from odf_verifier.service import build

forbid_pandas()
run_service(build)
