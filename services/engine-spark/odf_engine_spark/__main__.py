"""Run the engine: `python -m odf_engine_spark`."""

from odf_common.runtime.service import run_service
from odf_engine_spark.service import build

run_service(build)
