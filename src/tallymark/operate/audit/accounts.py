"""Checks the identities of the ledger, which hold for every partition at any time. Pure.

A reset to an earlier offset begins a new tally, which counts only what was written since.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from tallymark.core.claims import BACK, EMPTYING
from tallymark.core.plan import check_identity, readable_from
from tallymark.core.spans import Log, Partition, Position, Span
from tallymark.errors import PositionRefused
from tallymark.operate.findings import Finding, judge
from tallymark.stores.contract import Moment

SHOWN = 3
"""Maximum number of problems that are listed; the others are only counted."""


@dataclass(frozen=True)
class Account:
    """The ledger's data about one partition since its last reset. Commits are newest first.

    ``resets`` are those that explain rows: after the last one that emptied the tables. ``began_anew``: there was any.
    """

    position: Position
    skips: Sequence[Span]
    losses: Sequence[Span]
    fills: Sequence[Span]
    replays: Sequence[Span]
    resets: Sequence[Span]
    began_anew: bool
    letters: Sequence[int]
    commits: Sequence[Span]

    @property
    def span(self) -> Span:
        """The span that the tally accounts for; empty if the position is before its first offset."""
        position = self.position
        return Span(position.partition, position.first_offset, max(position.first_offset, position.next_offset))


def accounts(moment: Moment) -> list[Account]:
    commits: dict[Partition, list[Span]] = {}
    for line in moment.history:
        # Backfills and replays move counts within the tally; their total is zero.
        for span in line.spans if line.tally.total else ():
            commits.setdefault(span.partition, []).append(span)
    return [_account(moment, position, commits.get(position.partition, [])) for position in moment.positions]


def _account(moment: Moment, position: Position, commits: Sequence[Span]) -> Account:
    resets, notes, began_anew = list[Span](), list[tuple[str, Span]](), False
    for note, _ in moment.notes:
        if note.span.partition != position.partition:
            continue
        if note.kind in BACK:
            resets, notes = [] if note.kind == EMPTYING else [*resets, note.span], []
            began_anew = True
        else:
            notes.append((note.kind, note.span))
    # A reset voids the letters after its target, so letters of earlier tallies are not among these.
    letters = {letter.offset for letter in moment.letters if letter.partition == position.partition}
    return Account(
        position,
        skips=sorted(
            skip
            for skip in moment.skips
            if skip.partition == position.partition and skip.start >= position.first_offset
        ),
        losses=[span for kind, span in notes if kind == "loss"],
        fills=[span for kind, span in notes if kind == "backfill"],
        replays=[span for kind, span in notes if kind == "replay"],
        resets=resets,
        began_anew=began_anew,
        letters=sorted(filter(position.counts, letters)),
        commits=commits,
    )


def check(group: str, account: Account) -> list[Finding]:
    """Check every identity of a partition."""
    return [rule(shlex.quote(group), account) for rule in (_balance, _skips, _letters, _losses, _history)]


def check_log(group: str, position: Position, log: Log | None) -> Finding:
    """Check that the position belongs to this log, and that Kafka holds all unread records."""
    about, wanted = str(position.partition), "the position is in the log"
    if log is None:
        advice = f"the brokers do not have the partition; to forget it: tallymark delete-group {shlex.quote(group)}"
        return judge(about, "log", "no such partition", wanted, fail=advice)
    found = f"position {position.next_offset}, log {log.start}..{log.end}"
    try:
        check_identity(position, log.topic_id, log.cluster_id)
        readable_from(position.next_offset, log, "fail")
    except PositionRefused as error:
        return judge(about, "log", found, wanted, fail=str(error))
    return judge(about, "log", found, wanted)


def _balance(group: str, account: Account) -> Finding:
    position, tally = account.position, account.position.tally
    parts = " + ".join(f"{count} {name}" for name, count in asdict(tally).items() if count) or "nothing"
    wanted = f"{position.next_offset} - {position.first_offset} = {position.next_offset - position.first_offset}"
    advice = None
    if not position.balanced or min(asdict(tally).values()) < 0:
        advice = f"position or tally were changed manually; compare the tables with tallymark audit {group} --deep"
    return judge(str(position.partition), "tally", f"{parts} = {tally.total}", wanted, fail=advice)


def _skips(group: str, account: Account) -> Finding:
    position, found = account.position, sum(map(len, account.skips))
    outside = [str(skip) for skip in account.skips if not _within(skip, account.span)]
    twice = [f"{skip} and {next_skip}" for skip, next_skip in pairwise(account.skips) if next_skip.start < skip.stop]
    said = f"open skips of {found}" + "".join(f"; {skip} is not in the tally" for skip in outside)
    said += "".join(f"; {pair} overlap" for pair in twice)
    wrong = found != position.tally.skipped or outside or twice
    advice = f"the journal and the tally differ; list the skips with tallymark skips list {group}" if wrong else None
    return judge(str(position.partition), "skips", said, f"{position.tally.skipped} skipped", fail=advice)


def _letters(group: str, account: Account) -> Finding:
    dead, found = account.position.tally.dead, len(account.letters)
    advice = None
    if found != dead:
        advice = f"letters were removed or added manually; list them with tallymark dead-letters list {group}"
    return judge(str(account.position.partition), "dead letters", f"letters of {found} records", f"{dead} dead", advice)


def _losses(group: str, account: Account) -> Finding:
    lost, found = account.position.tally.lost, sum(len(clipped(loss, account.span)) for loss in account.losses)
    advice = (
        f"the journal and the tally differ; list the losses with tallymark losses {group}" if found != lost else None
    )
    return judge(str(account.position.partition), "losses", f"losses of {found}", f"{lost} lost", fail=advice)


def _history(group: str, account: Account) -> Finding:
    """Check that commits have no gap or overlap, and that the last commit ends at the position."""
    position, era = account.position, sorted(_era(account))
    if not era:
        return judge(str(position.partition), "history", "no commits", "no gap or overlap")
    wrong, at, bridges = [], era[0].start, [*account.skips, *account.fills]
    for span in [*era, Span(position.partition, position.next_offset, position.next_offset)]:
        if span.start < at:
            twice = f"{span.start}..{at} is committed twice"
            wrong.append(twice if len(span) else f"the last commit ends at {at}, after the position")
        elif span.start > at and not _covered(Span(position.partition, at, span.start), bridges):
            wrong.append(f"{at}..{span.start} is in no commit")
        at = max(at, span.stop)
    found = f"{len(era)} commit{'s' * (len(era) != 1)} of {era[0].start}..{max(span.stop for span in era)}"
    if not wrong:
        return judge(str(position.partition), "history", found, f"up to {position.next_offset}")
    said = "; ".join([found, *wrong[:SHOWN], *([f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else [])])
    advice = f"the position was changed manually; compare the tables with tallymark audit {group} --deep"
    return judge(str(position.partition), "history", said, f"up to {position.next_offset}", fail=advice)


def _era(account: Account) -> Iterator[Span]:
    """Yield the stored commits of the present tally. After a reset, older commits belong to an earlier tally."""
    bridges = merged([*account.skips, *account.fills])
    left = uncovered(account.span, bridges)
    for span in account.commits:
        if account.began_anew and left <= 0:
            return
        yield span
        left -= uncovered(clipped(span, account.span), bridges)


def _within(span: Span, whole: Span) -> bool:
    return whole.start <= span.start and span.stop <= whole.stop


def clipped(span: Span, to: Span) -> Span:
    """Return the part of the span that lies within ``to``."""
    start = min(max(span.start, to.start), to.stop)
    return Span(span.partition, start, max(start, min(span.stop, to.stop)))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the same offsets as sorted spans that do not overlap or touch."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and span.start <= joined[-1].stop:
            joined[-1] = Span(span.partition, joined[-1].start, max(span.stop, joined[-1].stop))
        else:
            joined.append(span)
    return joined


def uncovered(span: Span, apart: Sequence[Span]) -> int:
    """Return how many offsets of the span are in none of the spans ``apart``, which must not overlap."""
    return len(span) - sum(len(clipped(other, span)) for other in apart)


def _covered(span: Span, by: Sequence[Span]) -> bool:
    return uncovered(span, merged(by)) == 0
