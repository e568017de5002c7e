"""`odf topics`: the topics that a node needs, for the administrator of a Kafka cluster."""

import click

from odf_cli.output import output_option, print_rows
from odf_common.service.settings import load


@click.command("topics", short_help="Show the topics that the node needs.")
@output_option
def command(output: str) -> None:
    """Show the topics that the node needs before it has a dataset: partitions, replication factor, configuration.

    With ODF_KAFKA_MANAGE_TOPICS=0 an administrator creates them before `odf up`, and one more for each push source:
    [prefix]odf.push.DATASET.SOURCE with retention.ms=-1. `odf add` names it if it is missing.

    \b
    Example:
      odf topics
      ODF_KAFKA=kafka:9092 ODF_KAFKA_PREFIX=staging. ODF_KAFKA_MIN_INSYNC_REPLICAS=2 odf topics --output json
    """
    from odf_common.adapters.kafka.topic_specs import node_topics
    from odf_common.service.connections import topic_policy

    settings = load()
    rows = [
        {
            "topic": spec.name,
            "partitions": spec.partitions,
            "replication": str(spec.replication_factor) if spec.replication_factor > 0 else "broker default",
            "config": spec.properties(),
        }
        for spec in node_topics(topic_policy(settings), settings.kafka_prefix)
    ]
    print_rows(rows, output)
