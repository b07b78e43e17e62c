"""Rules for new topics: names, numbers of partitions, settings, and room in the cluster. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.broker.cluster.objects import Topic
from headgate.broker.cluster.topic_config import TopicConfig, is_internal, validate_topic_name
from headgate.broker.runtime.errors import InvalidError, Reason

LOT_TOPICS_MAX = 100
LOT_PARTITIONS_MAX = 200
"""Topics, and their partitions, that one commit creates or deletes. A topic with more partitions gets a commit of its own. The
leader checks, writes and applies a commit in one turn of its loop, and every other broker applies it in one turn: some four
milliseconds."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A request for a new topic. `partitions` None: the broker's `num_partitions`. `replication_factor`: see `Topic`."""

    name: str
    partitions: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = 1


@dataclass(frozen=True, slots=True)
class TopicLimits:
    partitions_default: int
    partitions_per_topic_max: int
    partitions_max: int


def lots(partitions: Iterable[int]) -> Iterator[slice]:
    """Divide topics with these numbers of partitions into lots for one commit each."""
    first = end = total = 0
    for partition in partitions:
        if end > first and (end - first == LOT_TOPICS_MAX or total + partition > LOT_PARTITIONS_MAX):
            yield slice(first, end)
            first, total = end, 0
        total += partition
        end += 1
    if end > first:
        yield slice(first, end)


def check_new_topics(topics: Mapping[str, Topic], asked: Sequence[NewTopic], limits: TopicLimits) -> list[int | InvalidError]:
    """For each requested topic its number of partitions, or the error.

    Args:
        topics: the existing ones, by name.
        asked: every name at most once.
    """
    # Only names with these characters can collide. There may be many topics, so skip the check if possible.
    alike = {_alike(name): name for name in topics} if any("." in topic.name or "_" in topic.name for topic in asked) else {}
    total = partition_count(topics)
    checked: list[int | InvalidError] = []
    for topic in asked:
        try:
            if topic.name in topics:
                raise InvalidError(Reason.TOPIC_EXISTS, f"topic exists already. topic=`{topic.name}`")
            validate_topic_name(topic.name)
            if (other := alike.get(_alike(topic.name))) is not None:
                raise InvalidError(
                    Reason.INVALID_TOPIC,
                    f"topic name differs from another only in . and _. topic=`{topic.name}` existing=`{other}`",
                )
            partitions = limits.partitions_default if topic.partitions is None else topic.partitions
            check_partitions(partitions, limits)
            TopicConfig.parse(topic.config)
            if not is_internal(topic.name):  # groups need their own topic, so the limit does not apply to it
                check_room(total, partitions, limits)
        except InvalidError as error:
            checked.append(error)
        else:
            alike[_alike(topic.name)] = topic.name
            total += partitions
            checked.append(partitions)
    return checked


def _alike(name: str) -> str:
    """Names that differ only in these characters become equal. Kafka's brokers refuse the second of two such names, because
    their metrics collide. Tools rely on that."""
    return name.replace(".", "_")


def partition_count(topics: Mapping[str, Topic]) -> int:
    return sum(topic.partitions for topic in topics.values())


def check_partitions(partitions: int, limits: TopicLimits) -> None:
    """Raise InvalidError(INVALID_PARTITIONS) if the number of partitions is out of range."""
    if not 1 <= partitions <= limits.partitions_per_topic_max:
        raise InvalidError(
            Reason.INVALID_PARTITIONS,
            f"number of partitions is out of range. partitions=`{partitions}` min=`1` max=`{limits.partitions_per_topic_max}`",
        )


def check_room(total: int, added: int, limits: TopicLimits) -> None:
    """Raise InvalidError(POLICY_VIOLATION) if a cluster with `total` partitions may not get `added` more."""
    if total + added > limits.partitions_max:
        raise InvalidError(
            Reason.POLICY_VIOLATION,
            "the cluster would have too many partitions: delete topics, or start the brokers with a larger partitions_max. "
            f"has=`{total}` more=`{added}` max=`{limits.partitions_max}`",
        )
