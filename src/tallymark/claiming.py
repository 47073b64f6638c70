"""What to wish for when partitions are claimed: where they begin, and which are sent somewhere else. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tallymark.fence import FirstClaim, Restart, Wish
from tallymark.positions import Start, overridden_offset, starting_offset
from tallymark.spans import Log, Partition, Position


@dataclass(frozen=True)
class Beginning:
    """How a run begins: by which strategy, with which topics that existed when it started, and of which it knows all.

    Where partitions were ``chosen`` one by one, each begins by the strategy. Under a pattern a topic that the group has
    no position of is as good as new, also after a standstill.
    """

    start: Start
    topics: frozenset[str]
    chosen: frozenset[Partition] | None
    by_pattern: bool

    def fresh(self, saved: Sequence[Position]) -> frozenset[str]:
        """The topics that begin by the strategy. All others have appeared under a running subscription."""
        if self.chosen is not None:
            return frozenset(partition.topic for partition in self.chosen)
        if self.by_pattern and saved:
            return frozenset()
        return self.topics - {position.partition.topic for position in saved}

    def wish(
        self,
        saved: Sequence[Position],
        wanted: frozenset[Partition],
        logs: Mapping[Partition, Log],
        at: Mapping[Partition, int | None],
        may_override: Callable[[Position], bool],
    ) -> Wish:
        """First positions for what has none, and other ones for what the strategy overrides.

        The first claim of a topic begins all of it: what has no position after that was added later, and starts at
        the earliest. ``at`` is the brokers' answer for the time that the strategy names.
        """
        fresh, positions = self.fresh(saved), {position.partition: position for position in saved}
        concerned = {one: log for one, log in logs.items() if one in wanted or one.topic in fresh}
        first = {
            one: FirstClaim(
                starting_offset(self.start, log, at.get(one), topic_is_known=one.topic not in fresh),
                log.topic_id,
                log.cluster_id,
                leader_epoch=log.leader_epoch,
            )
            for one, log in concerned.items()
            if one not in positions
        }
        targets = {
            one: overridden_offset(self.start, log, at.get(one))
            for one, log in concerned.items()
            if one in positions and may_override(positions[one])
        }
        reason = f"start={self.start.kind} overrides the saved position"
        restarts = {
            one: Restart(
                to,
                reason,
                only_ahead=to == logs[one].stop and self.start.kind in ("latest", "timestamp"),
                leader_epoch=logs[one].leader_epoch,
            )
            for one, to in targets.items()
            if to is not None
        }
        return Wish(first, restarts)
