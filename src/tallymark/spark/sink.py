"""A sink for Spark streaming queries that commits the rows of a micro-batch together with its number.

The ledger stores a query like a group. The topic is the query, with a single partition; the offsets are the numbers of
the micro-batches; the topic id is the query id, which the checkpoint holds. So claims, epochs and the handling of
unknown outcomes apply unchanged: a repeated micro-batch is before the position, and a second driver fences the first.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Literal, NoReturn, get_args

from tallymark.core.batch import BatchToCommit
from tallymark.core.budget import Budget
from tallymark.core.claims import Claim, FirstClaim, PositionChanges
from tallymark.core.durations import Duration, parse_duration
from tallymark.core.plan import Move, Plan
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.core.records import PartitionCounts, Reading
from tallymark.core.retention import DEFAULT_RETENTION, Retention
from tallymark.core.retry import PATIENCE, retrying
from tallymark.core.spans import STREAMING, Partition, Position
from tallymark.core.tables import Changes, Refusal, TableSpec, Write
from tallymark.errors import (
    BadInput,
    BatchTooLarge,
    DataRefused,
    GroupPaused,
    PositionRefused,
    TallymarkError,
    TopicRecreated,
)
from tallymark.run.commit import Committer, Destination
from tallymark.run.heartbeat import Heartbeat, error_text
from tallymark.run.setup import new_owner
from tallymark.run.until import may_go_on
from tallymark.stores.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tallymark.spark.microbatch import Microbatch

    TableFunction = Callable[[DataFrame], DataFrame]

log = logging.getLogger(__name__)

Road = Literal["driver", "executors"]

CLUSTER = STREAMING
"""The cluster id of queries in the ledger."""
LAST = 20
"""Number of recent commits that are searched for the last, because clocks may disagree about their order."""
NOTHING_DEAD = Budget(max_dead_per_batch=0)
"""A row of a query has no record that could become a dead letter."""


class Sink:
    """Writes the micro-batches of a streaming query to tables, each exactly once.

    >>> sink = Sink("hourly-totals", store="postgresql://localhost/shop")
    >>> @sink.table("totals", key=["hour", "shop"], write="upsert")
    ... def totals(rows):
    ...     return rows.select("hour", "shop", "amount")
    >>> df.writeStream.foreachBatch(sink.foreach_batch).option("checkpointLocation", "/checkpoints/totals").start()

    ``name`` identifies the query in the ledger; every query needs its own. ``road="executors"`` stages rows from the
    executors, for micro-batches that are too large for the driver. ``patience`` is how long the store may be
    unreachable, such as "5m". ``retention`` sets how long the ledger keeps history. ``on_step`` is called at every
    named step of every micro-batch.
    """

    def __init__(
        self,
        name: str,
        *,
        store: str,
        road: Road = "driver",
        patience: Duration = PATIENCE,
        retention: Retention = DEFAULT_RETENTION,
        on_step: OnStep = ignore,
    ) -> None:
        if not name or len(name) > 249 or name != name.strip():
            raise BadInput("Sink() needs a name of 1 to 249 characters, without leading or trailing spaces")
        if road not in get_args(Road):
            raise BadInput(f"road={road!r} is not known; write {' or '.join(get_args(Road))}")
        self.name = name
        self._store = open_store(store)
        self._road = road
        self._patience = parse_duration(patience, "patience").total_seconds()
        self._retention = retention
        self._on_step = on_step
        self._tables: dict[str, tuple[TableSpec, TableFunction]] = {}
        self._partition = Partition(name, 0)
        self._run: str | None = None
        self._owner = new_owner()
        self._claims: dict[Partition, Claim] = {}
        self._heartbeat: Heartbeat | None = None
        self._failure: Callable[[], str | None] = lambda: None
        self._next = 0

    def table(
        self,
        name: str,
        *,
        key: str | Sequence[str] = (),
        write: Write = "append",
        version: str | None = None,
        delete: str | None = None,
        create: bool = True,
        evolve: bool = False,
    ) -> Callable[[TableFunction], TableFunction]:
        """Fill a table with the rows of every micro-batch, or with the result of the decorated function.

        The arguments are those of ``Pipeline.table``; ``delete`` is a condition on the row, such as ``"op = 'd'"``.
        """
        if write == "merge":
            raise BadInput(f"table {name}: a streaming query keeps its own totals; set write='upsert'")
        if evolve not in (True, False):
            raise BadInput(f"table {name}: evolve={evolve!r} is not known here; set evolve=True to add columns")
        columns = (key,) if isinstance(key, str) else tuple(key)
        # A streaming query aggregates across micro-batches itself, so its rows may replace earlier rows.
        keyed = write != "append"
        spec = TableSpec(name, columns, write, version, delete, create=create, evolve=evolve, per_batch=keyed)
        if name in self._tables:
            raise BadInput(f"sink {self.name}: table {name} has two functions; give each table one function")
        if delete == "tombstone":
            raise BadInput(f"table {name}: a streaming query has no tombstones; set delete= to a condition on the row")
        if delete is not None and self._road == "executors":
            raise BadInput(f"table {name}: only the driver can delete rows; leave out road='executors'")
        self._tables[name] = (spec, lambda rows: rows)

        def register(function: TableFunction) -> TableFunction:
            self._tables[name] = (spec, function)
            return function

        return register

    def foreach_batch(self, rows: DataFrame, batch: int) -> None:
        """Write one micro-batch; pass this method to ``writeStream.foreachBatch``. Ignores repeated micro-batches."""
        from tallymark.spark.microbatch import identify, table_rows

        if not self._tables:
            raise BadInput(f"sink {self.name} has no table; call sink.table('name') before the query starts")
        micro = identify(rows, batch)
        if len(self._tables) > 1:
            # All tables must see the same rows, and Spark would compute them again for each table.
            rows = rows.persist()
        try:
            results = {spec.name: table_rows(spec, function, rows) for spec, function in self._tables.values()}
            if self._run != micro.run:
                self._end_run()
                self._begin(micro, results)
            self._check_next(micro)
            if batch < self._next:
                log.info("repeated batch ignored sink=%s batch=%s", self.name, micro.name)
                return
            self._wait_while_paused(micro)
            self._write(micro, results)
        except BaseException as error:
            self._end_run(error)
            raise
        finally:
            if len(self._tables) > 1:
                rows.unpersist()

    def _end_run(self, error: BaseException | None = None) -> None:
        if self._heartbeat is not None:
            self._heartbeat.end(error_text(error))
        self._heartbeat = self._run = None

    def _at_exit(self) -> None:
        """Close a sink that the program did not close, so that the run is not recorded as killed."""
        failed = self._failure()
        self._end_run(TallymarkError(failed) if failed else None)
        with suppress(TallymarkError):
            self.close()

    def close(self) -> None:
        """Release the claim and close the store. Call this when the query has ended."""
        atexit.unregister(self._at_exit)
        self._end_run()
        if self._claims:
            self._store.release(self.name, self._claims.values())
        self._claims = {}
        self._store.close()

    @property
    def _specs(self) -> list[TableSpec]:
        return [spec for spec, _ in self._tables.values()]

    def _begin(self, micro: Microbatch, results: Mapping[str, DataFrame]) -> None:
        """Claim the query for this run, so that an old driver can't commit any more."""
        from tallymark.spark.microbatch import schema

        schemas = {spec.name: schema(spec, results[spec.name]) for spec in self._specs}
        retrying(lambda: self._store.check_tables(self._specs, schemas), patience=self._patience)
        retrying(self._store.create_ledger, patience=self._patience)
        self._owner = new_owner()
        self._claims = retrying(partial(self._claim, micro), patience=self._patience)
        position = self._claims[self._partition].position
        retrying(lambda: self._store.create_tables(self._specs, schemas), patience=self._patience)
        kept = {self._owner.run}
        retrying(lambda: self._store.clear_stages(self.name, keep=kept), patience=self._patience)
        self._heartbeat = Heartbeat(self._store, self.name, self._owner, micro.is_active, self._retention)
        self._heartbeat.start()
        self._next, self._run, self._failure = position.next_offset, micro.run, micro.failure
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)
        log.info("claimed sink=%s query=%s next=%d owner=%s", self.name, micro.query, self._next, self._owner.run)

    def _claim(self, micro: Microbatch) -> dict[Partition, Claim]:
        def decide(saved: Sequence[Position]) -> PositionChanges:
            # Checked before the claim, because a refused query must not fence the valid owner.
            for position in saved:
                self._check(micro, position)
                self._check_repeated(micro, position)
            first = FirstClaim(micro.number, micro.query, CLUSTER)
            return PositionChanges({} if saved else {self._partition: first})

        return self._store.claim(self.name, self._owner, [self._partition], decide, {})

    def _check(self, micro: Microbatch, position: Position) -> None:
        """Refuse another query, or a checkpoint that does not continue at the position."""
        if position.partition != self._partition or position.cluster_id != CLUSTER:
            raise BadInput(
                f"sink {self.name}: {self._store.name} has a Kafka group of the same name; choose another name"
            )
        if position.topic_id != micro.query:
            raise TopicRecreated(
                f"sink {self.name}: {self._store.name} has batches of query {position.topic_id}, and this checkpoint "
                f"belongs to query {micro.query}; start the query with the old checkpoint, or give the sink another "
                "name"
            )
        if micro.number > position.next_offset:
            raise PositionRefused(
                f"sink {self.name}: batch {micro.number} follows batch {position.next_offset - 1}, so the rows in "
                "between would be missing; start the query with its latest checkpoint"
            )
        if micro.number < position.next_offset - 1:
            raise self._stale_checkpoint(micro, position)

    def _check_repeated(self, micro: Microbatch, position: Position) -> None:
        """Spark repeats at most the last micro-batch, with the same offsets; other offsets mean other rows."""
        if micro.number != position.next_offset - 1:
            return
        commits = self._store.journal().history(self.name, most=LAST)
        last = [line.name for line in commits if any(span.stop == position.next_offset for span in line.spans)]
        if not last:
            log.warning("repeated batch not verified, its history was pruned sink=%s batch=%s", self.name, micro.name)
        elif micro.name not in last:
            raise self._stale_checkpoint(micro, position)

    def _stale_checkpoint(self, micro: Microbatch, position: Position) -> PositionRefused:
        return PositionRefused(
            f"sink {self.name}: batches up to {position.next_offset - 1} are committed, and this checkpoint repeats "
            f"batch {micro.number} with other rows, so it is an older copy; start the query with its latest checkpoint"
        )

    def _check_next(self, micro: Microbatch) -> None:
        if micro.number > self._next:
            raise PositionRefused(
                f"sink {self.name}: expected batch {self._next}, got {micro.number}; start the query again"
            )

    def _wait_while_paused(self, micro: Microbatch) -> None:
        left = threading.Event()

        def look() -> None:
            if not micro.is_active():
                left.set()

        if not may_go_on(self._store, self.name, left, self._patience, has_end=False, meanwhile=look):
            raise GroupPaused(
                f"sink {self.name}: the query was stopped during a pause; batch {micro.number} was not written"
            )

    def _write(self, micro: Microbatch, results: Mapping[str, DataFrame]) -> None:
        started, progress = datetime.now(UTC), Progress(micro.name, 1, 0)
        changes = self._changes(micro, results)
        self._on_step(Step.STAGED, progress)
        plan = Plan((Move(self._partition, micro.number, 0, 1),))
        batch = BatchToCommit(
            micro.name,
            started,
            plan,
            Reading({self._partition: PartitionCounts(1)}, {}, []),
            self._specs,
            (),
            list(changes),
        )
        try:
            committer = self._committer(changes)
            entry = committer.commit(batch, self._claims, lambda step: self._on_step(step, progress))
        except BatchTooLarge as error:
            raise DataRefused(
                f"sink {self.name}: {error}; nothing was written: road='driver' shows the refused row, and an option "
                "of the source, such as maxOffsetsPerTrigger, makes batches smaller"
            ) from error
        finally:
            self._drop_stages(changes)
        self._next = micro.number + 1
        self._on_step(Step.COMMITTED, progress)
        log.info("committed sink=%s batch=%s rows=%s", self.name, micro.name, dict(entry.rows))
        self._on_step(Step.DONE, progress)

    def _committer(self, changes: Sequence[Changes]) -> Committer:
        destination = Destination(self._store, self._store)
        return Committer(self.name, destination, NOTHING_DEAD, partial(self._refuse, changes), self._patience)

    def _changes(self, micro: Microbatch, results: Mapping[str, DataFrame]) -> list[Changes]:
        from tallymark.spark.executors import can_stage
        from tallymark.spark.microbatch import collected, staged

        if self._road == "driver":
            return [collected(spec, results[spec.name], micro.name) for spec in self._specs]
        stages = self._store.stages(self.name, self._owner.run)
        if stages is None or not can_stage():
            raise BadInput(
                f"road='executors': executors can't stage rows in {self._store.name}, or pandas, which Spark needs for "
                "that, is not installed; leave out road="
            )
        return [staged(spec, results[spec.name], micro.name, stages) for spec in self._specs]

    def _drop_stages(self, changes: Sequence[Changes]) -> None:
        stages = self._store.stages(self.name, self._owner.run)
        if stages is not None:
            stages.drop(change.staged.name for change in changes if change.staged)

    def _refuse(self, changes: Sequence[Changes], refusals: Sequence[Refusal]) -> NoReturn:
        from tallymark.spark.microbatch import described

        first = refusals[0]
        change = next(one for one in changes if one.spec.name == first.table)
        raise DataRefused(
            f"sink {self.name}: table {first.table} refused {described(change, first.offset)}: {first.error}; "
            "the batch was not written: filter out such rows, or correct the table"
        )
