"""Draws the pictures of the documentation: ``python -m tools.pictures``."""

from __future__ import annotations

from dataclasses import dataclass

from tools.markdown import ROOT
from tools.svg import Picture

PICTURES = ROOT / "docs" / "pictures"


@dataclass(frozen=True)
class Row:
    title: str
    first: str
    second: str
    result: str
    detail: str
    is_one_transaction: bool = False


HEADING = "A crash between saving the rows and saving the offsets"
LABEL = "What a crash does to two steps, and to one transaction"
CRASH = (
    Row(
        "Rows first", "rows of 100 to 199", "next offset: 200", "100 records repeated", "the next run reads them again"
    ),
    Row("Offsets first", "next offset: 200", "rows of 100 to 199", "100 records lost", "the next run begins at 200"),
    Row(
        "tallymark",
        "rows of 100 to 199",
        "next offset: 200",
        "nothing lost or repeated",
        "both rolled back, read again",
        is_one_transaction=True,
    ),
)


def crash() -> Picture:
    """A crash between two steps, in either order, and inside one transaction."""
    picture = Picture(LABEL, 820, 336)
    picture.text(24, 34, HEADING, "strong")
    for number, row in enumerate(CRASH):
        top = 58 + 88 * number
        picture.text(24, top + 38, row.title, "strong")
        _steps(picture, row, 136, top)
        _outcome(picture, row, 582, top + 31)
    return picture


def narrow_crash() -> Picture:
    """The same for a telephone."""
    picture = Picture(LABEL, 440, 490)
    for number, row in enumerate(CRASH):
        top = 44 + 156 * number
        picture.text(16, top - 12, row.title, "strong")
        _steps(picture, row, 8, top)
        _outcome(picture, row, 22, top + 94)
    return picture


def _steps(picture: Picture, row: Row, left: int, top: int) -> None:
    """The two steps with the crash in between, in a frame if they are one transaction."""
    if row.is_one_transaction:
        picture.box(left, top, 424, 72, "store")
        picture.text(left + 212, top + 67, "one transaction", "small quiet", "middle")
    for x, words in ((left + 14, row.first), (left + 244, row.second)):
        picture.label(x, top + 12, 166, 38, words)
    picture.path(f"M {left + 218} {top + 9} l -12 22 h 12 l -12 22", "crash")


def _outcome(picture: Picture, row: Row, x: int, y: int) -> None:
    picture.text(x, y, row.result, "strong good" if row.is_one_transaction else "strong bad")
    picture.text(x, y + 20, row.detail, "small quiet")


def protocol() -> Picture:
    """The messages of one batch."""
    picture = Picture("One batch: Kafka, a run, the database", 760, 560)
    kafka, run, store = 90, 380, 670
    for x, name in ((kafka, "Kafka"), (run, "a run"), (store, "your database")):
        picture.box(x - 75, 16, 150, 32)
        picture.text(x, 37, name, "strong", "middle")
        picture.line(x, 48, x, 544, "life")
    picture.arrow(kafka, 84, run, "you are assigned orders[0]")
    picture.arrow(run, 118, store, "claim orders[0]: epoch 4 becomes 5")
    picture.arrow(store, 148, run, "the position: 8200")
    picture.arrow(run, 186, kafka, "records from 8200 on?")
    picture.arrow(kafka, 216, run, "8200 to 8699")
    picture.text(run + 14, 244, "decode, compute, count", "small quiet")
    picture.box(run - 12, 262, store - run + 88, 196, "store")
    picture.text(run + 4, 282, "one transaction", "small strong good")
    for y, words in (
        (308, "BEGIN"),
        (342, "the rows of every table"),
        (376, "dead letters, history, tally"),
        (410, "position 8200 becomes 8700, if epoch = 5"),
        (444, "COMMIT"),
    ):
        picture.arrow(run, y, store, words)
    picture.arrow(store, 488, run, "done")
    picture.text(run - 22, 412, "no row matched?", "small quiet", "end")
    picture.text(run - 22, 430, "ROLLBACK: another owner", "small quiet", "end")
    picture.text(run - 22, 448, "has claimed orders[0]", "small quiet", "end")
    picture.text(run - 22, 492, "no answer? ask the database", "small quiet", "end")
    picture.text(run - 22, 510, "which position it has", "small quiet", "end")
    picture.text(run + 14, 528, "the next batch begins at 8700", "small quiet")
    return picture


def fencing() -> Picture:
    """Two owners of one partition, and the epoch that decides."""
    picture = Picture("An owner that was disconnected can't commit", 760, 430)
    first, store, second = 130, 380, 630
    for x, name in ((first, "run A"), (store, "the row of orders[0]"), (second, "run B")):
        picture.box(x - 85, 16, 170, 32)
        picture.text(x, 37, name, "strong", "middle")
        picture.line(x, 48, x, 414, "life")
    picture.arrow(first, 84, store, "claim")
    picture.label(store - 75, 94, 150, 28, "epoch 4, position 8000", "store")
    picture.arrow(first, 150, store, "commit with epoch 4")
    picture.label(store - 75, 160, 150, 28, "epoch 4, position 8200", "store")
    picture.label(first - 75, 200, 150, 66, "", "wrong")
    picture.text(first, 228, "frozen, or cut off;", "small", "middle")
    picture.text(first, 246, "its batch is in memory", "small", "middle")
    picture.arrow(second, 222, store, "claim")
    picture.label(store - 75, 232, 150, 28, "epoch 5, position 8200", "store")
    picture.arrow(second, 290, store, "commit with epoch 5")
    picture.label(store - 75, 300, 150, 28, "epoch 5, position 8700", "store")
    picture.arrow(first, 360, store, "commit with epoch 4")
    picture.text(store + 14, 364, "no row matches: rolled back, Fenced", "small bad")
    picture.text(store, 400, "8200 to 8699 are in the tables once", "small strong good", "middle")
    return picture


def counting() -> Picture:
    """The log of one partition, and what became of each offset."""
    picture = Picture("Every offset is counted once", 760, 234)
    log = (
        ("lost", 2, "wrong"),
        ("applied", 5, "store"),
        ("dead", 1, "dead"),
        ("skipped", 3, "box"),
        ("absent", 1, "none"),
        ("applied", 2, "store"),
    )
    x, offset, size = 20.0, 100, 40
    names: list[tuple[float, float, str]] = []
    for outcome, number, style in log:
        start = x
        for _ in range(number):
            picture.box(x, 70, size - 4, 40, style)
            picture.text(x + size / 2 - 2, 95, str(offset), "small", "middle")
            x, offset = x + size, offset + 1
        names.append((start, x, outcome))
    for start, end, outcome in names:
        picture.text((start + end) / 2 - 2, 132, outcome, "small quiet", "middle")
    picture.box(x, 70, size - 4, 40, "none")
    picture.text(x + size / 2 - 2, 95, str(offset), "small quiet", "middle")
    picture.text(x + 50, 95, "unread …", "small quiet")
    picture.text(20, 46, "first_offset = 100", "code")
    picture.line(22, 52, 22, 68)
    picture.text(x + 2, 46, f"next_offset = {offset}", "code")
    picture.line(x + 2, 52, x + 2, 68)
    picture.text(20, 186, "applied + dead + skipped + lost + absent = next_offset - first_offset", "code")
    picture.text(20, 212, "7 + 1 + 3 + 2 + 1 = 114 - 100", "code")
    return picture


DRAWN = {
    "one-transaction.svg": crash,
    "one-transaction-narrow.svg": narrow_crash,
    "protocol.svg": protocol,
    "fencing.svg": fencing,
    "counting.svg": counting,
}


def main() -> None:
    for name, draw in DRAWN.items():
        (PICTURES / name).write_text(str(draw()))


if __name__ == "__main__":
    main()
