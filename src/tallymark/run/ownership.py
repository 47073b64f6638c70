"""Tracks the partitions that a run owns: those assigned by the membership *and* claimed by the run in the ledger.

The run calls ``reconcile`` between two batches. It claims newly assigned partitions, releases revoked partitions and
drops lost partitions. Nothing in this module runs while a batch is being committed.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tallymark.core.claims import Claim, Entry, PositionChanges, advanced, check_held
from tallymark.core.plan import OnLoss, check_identity, readable_from
from tallymark.core.spans import Log, Mark, Partition, Position, Truncation
from tallymark.core.start import StartRules
from tallymark.core.topics import is_pattern
from tallymark.errors import Fenced, PositionRefused, TallymarkError, UnknownTopic, Unreachable
from tallymark.kafka.brokers import Brokers, Topic
from tallymark.kafka.membership import Assignment, Membership
from tallymark.run.heartbeat import Heartbeat, error_text
from tallymark.run.rebalance_log import Fences, RebalanceLog
from tallymark.run.setup import Job
from tallymark.run.truncation import Validation, cut_back
from tallymark.run.until import Goals, Retrying
from tallymark.stores.contract import Store

log = logging.getLogger(__name__)

GOOD_FOR_SECONDS = 0.05
"""How long the brokers' answer that a topic is still the same remains valid."""
LOOK_SECONDS = 5.0
"""How often a run checks its claims: without records to commit it would not notice that it is fenced."""
LONG_WAIT = 5.0
"""Seconds without an assignment after which a warning is logged."""


@dataclass(frozen=True)
class OwnershipChange:
    """Changes: partitions that were claimed, and those that were given up or set back to their saved positions."""

    gained: frozenset[Partition] = frozenset()
    gone: frozenset[Partition] = frozenset()


class Ownership:
    """The partitions of a group that one run owns."""

    def __init__(self, job: Job, membership: Membership, brokers: Brokers, ledger: Store) -> None:
        group, owner, start = job.group, job.owner, job.start
        self.tolerant = any(map(is_pattern, job.topics))
        """Whether topics may be created and deleted, because a pattern selects them."""
        self.claims: dict[Partition, Claim] = {}
        self.topics: dict[str, Topic] = {}
        self.assigned = False
        """Whether an assignment, which may be empty, has been claimed: a claim verifies that the topic is the same.

        Also if there was no topic at the start: a member of a Kafka group then gets no assignment.
        """
        self._group, self._owner, self._membership = group, owner, membership
        self._brokers, self._ledger, self._start = brokers, ledger, start
        self._retrying = Retrying(brokers.stop, job.patience)
        self._serials: dict[Partition, int] = {}
        self._fences = Fences()
        self._rebalances = RebalanceLog(ledger, group, owner, enabled=membership.grace is not None)
        self._start_rules = StartRules(start, frozenset(), membership.chosen, self.tolerant)
        self._may_override, self._epochs = True, dict[Partition, int]()
        # The order of claims is irrelevant if all members start at the earliest, or partitions are chosen explicitly.
        self._begins = start.kind != "earliest" and membership.chosen is None
        self._heartbeat = Heartbeat(ledger, group, owner, retention=job.retention)
        self._failure: str | None = None
        self._identified = -GOOD_FOR_SECONDS
        self._joined, self._looked = 0.0, time.monotonic()
        self.validation = Validation(brokers, self._retrying)

    def join(self, topics: Collection[str]) -> None:
        """Join the group. ``topics`` are those that exist now: topics added later start at the earliest offset."""
        self._start_rules = replace(self._start_rules, topics=frozenset(topics))
        self.assigned = not topics
        if self._membership.grace is not None and not self._start.prefer_saved:
            # Read epochs before members: a later claim raises the epoch; an earlier claimant is a member or has left.
            self._epochs = {partition: position.epoch for partition, position in self._saved().items()}
            others = self._retrying(lambda: self._brokers.members(self._group))
            self._may_override = not others
        self._heartbeat.start()
        self._retrying(self._membership.join)
        self._joined = time.monotonic()

    def goals(self, topics: Mapping[str, Topic]) -> Goals:
        """The current ends of all partitions of these topics that this membership covers."""
        chosen = self._membership.chosen

        def logs() -> dict[Partition, Log]:
            try:
                return self._brokers.logs(self._brokers.topics(list(topics), existing_only=self.tolerant))
            except UnknownTopic as gone:
                if not self.tolerant:
                    raise
                # The topic was deleted between the two requests; a retry does not list it any more.
                raise Unreachable(str(gone)) from gone

        ask = partial(self._retrying, logs)
        return Goals([log for log in ask().values() if chosen is None or log.partition in chosen], self._saved, ask)

    @property
    def rebalances(self) -> int:
        """Number of rebalances in this run."""
        return self._rebalances.count

    def reconcile(self) -> OwnershipChange:
        """Bring claims in line with the assignment and with claims of other owners."""
        try:
            self.look(LOOK_SECONDS)
        except Fenced as refused:
            return self.recover(refused)
        now = self._retrying(self._membership.assignment)
        self._warn_if_waiting(now)
        lost = [partition for partition in self.claims if now.ours.get(partition) != self._serials[partition]]
        revoked = [partition for partition in self.claims if partition in now.leaving and partition not in lost]
        if lost:
            self._drop(lost)
            self._rebalances.record("lost", held=len(self.claims), lost=lost, since=now.announced_at)
        if revoked:
            self._release(revoked)
        self._membership.acknowledge(now.leaving)
        if revoked:
            self._rebalances.record("revoked", held=len(self.claims), lost=revoked, since=now.announced_at)
        claimable = {
            partition: serial for partition, serial in now.ours.items() if self._may_claim(partition, now.leaving)
        }
        gained: frozenset[Partition] = frozenset()
        if claimable:
            try:
                gained = self._gain(claimable)
            except Fenced as refused:
                recovered = self.recover(refused)
                return OwnershipChange(recovered.gained, recovered.gone.union(lost, revoked))
            except UnknownTopic:
                if not self.tolerant:
                    raise
                # Not one of them is claimed. The next assignment lacks the topic.
                return OwnershipChange(gained, frozenset([*lost, *revoked]))
            if gained:
                self._rebalances.record("assigned", held=len(self.claims), gained=gained, since=now.announced_at)
        self.assigned = self.assigned or now.announced_at > 0
        return OwnershipChange(gained, frozenset([*lost, *revoked]))

    def recover(self, refused: Fenced) -> OwnershipChange:
        """Drop the partitions that other owners have claimed, and keep the rest at their saved positions.

        The group may not have notified this run yet, for example after a network failure. If it continues to assign the
        partition to this run, the other owner is outdated, and this run claims the partition again.
        """
        if self._membership.grace is None:
            raise refused
        before = frozenset(self.claims)
        saved = self._saved()
        fenced = [
            partition
            for partition, held in self.claims.items()
            if partition not in saved or not held.held_in(saved[partition])
        ]
        log.warning("fenced group=%s partitions=%s error=%s", self._group, ",".join(map(str, fenced)), refused)
        for partition in fenced:
            if self._fences.add(partition):
                raise refused
        self._drop(fenced)
        self._rebalances.record("lost", held=len(self.claims), lost=fenced, since=time.monotonic())
        try:
            self.claims = self._retrying(lambda: self._ledger.reclaim(self._group, self.claims))
        except Fenced as again:
            return OwnershipChange(self.recover(again).gained, before)
        return OwnershipChange(frozenset(self.claims), before)

    def committed(self, entry: Entry) -> None:
        """Update the claims after a commit, and mirror the positions to the Kafka group if configured."""
        for step in entry.advances:
            if step.partition in self.claims:
                self.claims[step.partition] = advanced(self.claims[step.partition], step, entry.now)
        self._membership.mirror({step.partition: step.stop for step in entry.advances})

    def failed(self, error: BaseException | None) -> None:
        """Record the error of a batch for ``leave``, because the GeneratorExit that ends a loop over batches has none.

        Only the text is kept: a reference to the exception would keep its frames alive, and the loop with them.
        """
        self._failure = error_text(error)

    def leave(self) -> bool:
        """Release all partitions, first in the ledger, then in the group. Returns whether the ledger is reachable."""
        error = sys.exc_info()[1]
        reason = self._failure if isinstance(error, GeneratorExit) else error_text(error)
        held, began = list(self.claims), time.monotonic()
        reached = self._release(held)
        self._membership.leave()
        if held:
            self._rebalances.record("left", held=len(self.claims), lost=held, since=began, written=reached)
        self._heartbeat.end(reason, reached=reached)
        return reached

    def held_topics(self) -> dict[str, Topic]:
        """The topics, each reduced to the partitions that this run has claimed."""
        held = list(self.claims)
        return {name: topic.only(held) for name, topic in self.topics.items() if any(p.topic == name for p in held)}

    def logs(self, partitions: Collection[Partition]) -> dict[Partition, Log]:
        """The brokers' logs of these claimed partitions."""
        topics = {name: topic.only(partitions) for name, topic in self.held_topics().items()}
        return self._retrying(lambda: self._brokers.logs(topics))

    def readable(self, partitions: Collection[Partition], on_loss: OnLoss) -> dict[Partition, Mark]:
        """Where reading can continue in these partitions; raises if it can't without losing or repeating records.

        The marks carry the epochs of the leaders that answered.
        """
        logs = self.logs(partitions)
        try:
            marks = {partition: self.claims[partition].position.mark for partition in logs}
            self.validation.check(marks, logs)
            starts = {
                partition: readable_from(mark.offset, logs[partition], on_loss) for partition, mark in marks.items()
            }
        except PositionRefused:
            # If the topic was recreated, that is the better explanation.
            self._retrying(self.check_identity)
            raise
        return {partition: Mark(start, logs[partition].leader_epoch) for partition, start in starts.items()}

    def cut_back(self, truncations: Collection[Truncation]) -> OwnershipChange:
        """Move back to where these logs were truncated, and record it: from there on the log has other records."""
        cut = partial(cut_back, self._ledger, self._group, self._owner, dict(self.claims), truncations)
        try:
            claims = self._retrying(cut)
        except Fenced as refused:
            return self.recover(refused)
        self.claims |= claims
        self._membership.mirror({partition: claim.position.next_offset for partition, claim in claims.items()})
        return OwnershipChange(frozenset(claims), frozenset(claims))

    def ask_identity(self) -> Callable[[], None]:
        """Ask whether the claimed topics are still those of the positions; the returned function raises if not.

        A topic that no longer exists passes: all that was read came from the old topic. An answer is reused for
        ``GOOD_FOR_SECONDS``, because a topic can't be deleted, created and filled again in less time.
        """
        asked_at = time.monotonic()
        if asked_at - self._identified < GOOD_FOR_SECONDS:
            return lambda: None
        ids = self._brokers.ask_ids(sorted({partition.topic for partition in list(self.claims)}))

        def answer() -> None:
            self._compare(ids())
            self._identified = asked_at

        return answer

    def check_identity(self) -> None:
        """Like ``ask_identity``, but waits for the answer and never reuses an earlier answer."""
        self._compare(self._brokers.ask_ids(sorted({partition.topic for partition in list(self.claims)}))())

    def _compare(self, ids: Mapping[str, str]) -> None:
        for claim in list(self.claims.values()):
            if claim.partition.topic in ids:
                check_identity(claim.position, ids[claim.partition.topic], self._brokers.cluster_id())

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Drop partitions whose topic was not found: the group will revoke them soon, or assign them again."""
        log.warning("topic not found group=%s partitions=%s", self._group, ",".join(map(str, sorted(partitions))))
        self._drop(partitions)

    def look(self, seconds: float) -> None:
        """Raise ``Fenced`` if another owner has claimed a partition, unless that was checked ``seconds`` ago."""
        if time.monotonic() - self._looked > seconds:
            check_held(self.claims, self._saved() if self.claims else {})
            self._looked = time.monotonic()

    def _saved(self) -> dict[Partition, Position]:
        saved = self._retrying(lambda: self._ledger.positions(self._group))
        return {position.partition: position for position in saved.get(self._group, [])}

    def _warn_if_waiting(self, now: Assignment) -> None:
        if not now.announced_at and self._joined and time.monotonic() - self._joined > LONG_WAIT:
            self._joined = 0.0
            log.warning(
                "still waiting for an assignment group=%s: the brokers remove a killed member only after its session "
                "timeout; with membership=Group(instance=...) it rejoins without that wait",
                self._group,
            )

    def _may_claim(self, partition: Partition, leaving: Collection[Partition]) -> bool:
        waiting = self._fences.within(partition, self._membership.grace or 0)
        return partition not in self.claims and partition not in leaving and not waiting

    def _drop(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            del self.claims[partition]

    def _release(self, partitions: Sequence[Partition]) -> bool:
        claims = [self.claims[partition] for partition in partitions]
        self._drop(partitions)
        try:
            self._ledger.release(self._group, claims) if claims else None
            return True
        except TallymarkError as error:
            # A claim that can't be released does no harm: the next owner claims the partition anyway.
            return not error.transient

    def _gain(self, claimable: Mapping[Partition, int]) -> frozenset[Partition]:
        claims = self._retrying(lambda: self._claim(frozenset(claimable)))
        self.claims |= claims
        self._serials.update(claimable)
        self._may_override = self._begins = False
        self._membership.mirror({partition: claim.position.next_offset for partition, claim in claims.items()})
        log.info("claimed group=%s partitions=%d owner=%s", self._group, len(claims), self._owner.run)
        return frozenset(claims)

    def _claim(self, partitions: frozenset[Partition]) -> dict[Partition, Claim]:
        """Claim these partitions; those without a position in the ledger begin where ``start`` says."""
        topics = self._brokers.topics(sorted({partition.topic for partition in partitions}))
        logs = self._brokers.logs({name: topic.only(partitions) for name, topic in topics.items()})
        if self._begins:
            logs |= self._brokers.logs(self._brokers.topics(sorted(self._start_rules.topics), existing_only=True))
        at = self._brokers.offsets_at(logs, self._start.timestamp) if self._start.timestamp else {}
        cluster = self._brokers.cluster_id()

        def decide(saved: Sequence[Position]) -> PositionChanges:
            for position in saved:
                if position.partition.topic in topics:
                    check_identity(position, topics[position.partition.topic].id, cluster)
            return self._start_rules.decide(saved, partitions, logs, at, self._may_override_at)

        claims = self._ledger.claim(self._group, self._owner, partitions, decide, self.claims)
        self.topics = {**self.topics, **topics}
        return claims

    def _may_override_at(self, position: Position) -> bool:
        """Only at the start of a run, and only if no other member has claimed the partition since."""
        unclaimed = self._epochs.get(position.partition) == position.epoch
        return self._may_override and (unclaimed or self._membership.grace is None)
