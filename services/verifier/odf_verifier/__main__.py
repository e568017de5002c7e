"""Start the verifier: `python -m odf_verifier`."""

from odf_common.service.run import run_service
from odf_verifier.service import build

run_service(build)
