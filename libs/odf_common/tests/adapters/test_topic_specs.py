"""Topics as the node creates them, or as an administrator has to."""

from odf_common.adapters.kafka.cluster import TopicPolicy, missing_topics, node_topics, push_topic
from odf_common.ports.bus import DEAD_LETTERS, FIXED_TOPICS, NODE_CLAIMS

STRICT = TopicPolicy(is_ours=False, replication_factor=3, min_insync_replicas=2)


def test_all_topics_of_a_node_have_its_prefix() -> None:
    names = [spec.name for spec in node_topics(TopicPolicy(), "team.")]
    assert names == [f"team.{name}" for name in (*FIXED_TOPICS, NODE_CLAIMS)]


def test_replicas_are_the_brokers_unless_they_are_configured() -> None:
    assert {
        (spec.replication_factor, spec.config.get("min.insync.replicas")) for spec in node_topics(STRICT, "")
    } == {(3, "2")}
    assert {spec.replication_factor for spec in node_topics(TopicPolicy(), "")} == {-1}


def test_claims_are_kept_forever_in_one_partition_and_dead_letters_for_a_month() -> None:
    specs = {spec.name: spec for spec in node_topics(TopicPolicy(), "")}
    assert (specs[NODE_CLAIMS].partitions, specs[NODE_CLAIMS].config) == (1, {"retention.ms": "-1"})
    assert specs[DEAD_LETTERS].config == {"retention.ms": str(30 * 24 * 3600 * 1000)}


def test_topics_that_an_administrator_has_to_create_are_listed_with_their_configuration() -> None:
    error = missing_topics([push_topic(STRICT, "odf.push.orders.default", 2)])
    properties = "partitions=2, replication-factor=3, retention.ms=-1, min.insync.replicas=2"
    assert str(error).endswith(f"odf.push.orders.default ({properties})")
    assert "`odf topics`" in error.advice()
