"""Where the engine meets its settings."""

from odf_common.runtime.environment import Environment
from odf_common.runtime.service import Service
from odf_engine_spark.server import register
from odf_engine_spark.session import start


def build(env: Environment) -> Service:
    """Return the service once its session is warm: before that nobody can reach it, so nobody finds it slow."""
    settings = env.settings
    spark = start(settings.spark_master)
    return Service(
        name="engine-spark",
        grpc=register(spark, is_signed=settings.signed_columns),
        grpc_address=settings.required("engine"),
        on_stop=spark.session.stop,
    )
