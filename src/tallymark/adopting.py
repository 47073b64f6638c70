"""Taking over the offsets of what a team runs today: a Kafka group, or a Structured Streaming query."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from confluent_kafka import ConsumerGroupTopicPartitions

from tallymark.books import Decision, Run
from tallymark.brokers import TIMEOUT, Brokers
from tallymark.errors import BadInput, BeyondEnd, PositionMoved
from tallymark.fence import FirstClaim, Wish
from tallymark.moving import Planned
from tallymark.plan import check_identity
from tallymark.spans import Log, Partition, Position


def committed(brokers: Brokers, group: str) -> dict[Partition, int]:
    """The offsets that a Kafka group has committed."""
    asked = [ConsumerGroupTopicPartitions(group)]
    found = brokers.ask(lambda admin: admin.list_consumer_group_offsets(asked, request_timeout=TIMEOUT))
    return {
        Partition(one.topic, one.partition): one.offset
        for answer in found.values()
        for one in answer.topic_partitions
        if one.offset >= 0
    }


def adopt(
    there: Mapping[Partition, int], logs: Mapping[Partition, Log], positions: Mapping[Partition, Position]
) -> list[Planned]:
    """What taking over these offsets would mean. Pure. Partitions that have none there are left as they are."""
    return [_adopted(log, there.get(one), positions.get(one)) for one, log in sorted(logs.items())]


def _adopted(log: Log, offset: int | None, position: Position | None) -> Planned:
    if position is not None:
        check_identity(position, log.topic_id, log.cluster_id)
    if offset is None:
        current = position.next_offset if position else None
        return Planned(log, position, current, current)
    if offset > log.end:
        raise BeyondEnd(
            f"{log.partition}: offset {offset} is past the end of the log at {log.end}; "
            "these are offsets of another topic or cluster: check --brokers"
        )
    if position is not None and position.next_offset != offset:
        raise BadInput(
            f"{log.partition} has position {position.next_offset} already, and {offset} there; "
            "a position that exists is not imported over: tallymark reset moves it"
        )
    return Planned(log, position, offset, offset)


def lag(planned: Planned) -> int | None:
    return None if planned.new is None else planned.log.end - planned.new


def meaning(planned: Planned, going_on: Collection[str]) -> str:
    """What the run that comes next will find. ``going_on`` are topics in which some partition has a position then."""
    if planned.new is None and planned.partition.topic in going_on:
        return "no offset there: begins at the earliest"
    if planned.new is None:
        return "no offset there: begins as start= says"
    if not planned.changes:
        return "unchanged"
    gone = planned.log.start - planned.new
    if gone > 0:
        return f"{gone:,} offsets before {planned.log.start} are gone unread: on_loss= says what to do about them"
    return f"goes on at {planned.new}"


def adopting(plan: Sequence[Planned], there: Mapping[Partition, int], reason: str) -> Decision:
    """Make the positions of the plan, unless somebody has made other ones meanwhile."""
    logs = {one.partition: one.log for one in plan}

    def decide(found: Mapping[Partition, Position], _: Sequence[Run]) -> Wish:
        try:
            again = adopt(there, logs, found)
        except BadInput as moved:
            raise PositionMoved(f"{moved}; nothing was changed") from None
        return Wish(
            {
                one.partition: FirstClaim(one.new, one.log.topic_id, one.log.cluster_id, reason, one.log.leader_epoch)
                for one in again
                if one.old is None and one.new is not None
            }
        )

    return decide


def check_stopped(brokers: Brokers, group: str) -> None:
    """Refuse to take over from a Kafka group that goes on: what it reads from now on would be read twice."""
    members = brokers.members(group)
    if members:
        names = ", ".join(sorted({f"{one.client}{one.host}" for one in members}))
        raise BadInput(
            f"Kafka group {group} has {len(members)} members ({names}), which go on and can't be fenced; "
            "stop them first, or --while-running, and what they read from now on is read here again"
        )
