"""The public names are exactly these."""

from __future__ import annotations

import tallymark
from tallymark import errors


def test_the_public_names_are_these() -> None:
    assert tallymark.__all__ == [
        "AccessDenied",
        "App",
        "Avro",
        "BadInput",
        "Batch",
        "Budget",
        "BufferFull",
        "Bytes",
        "CommitRefused",
        "CommitUnknown",
        "Consumer",
        "Debezium",
        "Fenced",
        "Group",
        "Json",
        "Kafka",
        "LetterQuery",
        "Limits",
        "LogTruncated",
        "Metadata",
        "PartitionProgress",
        "Pipeline",
        "Producer",
        "ProducerStopped",
        "Protobuf",
        "Record",
        "RecordTooLarge",
        "Records",
        "RecordsLost",
        "Registry",
        "Retention",
        "Retry",
        "Sasl",
        "Sink",
        "SkipAhead",
        "Standalone",
        "Start",
        "Tally",
        "TallymarkError",
        "Tls",
        "Transaction",
        "UnknownPartition",
        "Unreachable",
    ]
    assert all(hasattr(tallymark, name) for name in tallymark.__all__)


def test_the_tree_of_errors_in_the_docstring_is_the_real_one() -> None:
    assert drawn_tree() == real_tree(errors.TallymarkError)


def test_only_an_unreachable_server_and_a_handler_that_says_so_are_worth_another_try() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert [kind for kind in kinds if getattr(kind, "transient", False)] == [errors.Unreachable, errors.Retry]


def drawn_tree() -> list[tuple[int, str]]:
    """Depth and name of each line of the docstring's tree."""
    lines = [line[4:] for line in str(errors.__doc__).splitlines() if "──" in line or line == "    TallymarkError"]
    return [((len(line) - len(line.lstrip("│├└─ "))) // 4, line.lstrip("│├└─ ").split()[0]) for line in lines]


def real_tree(kind: type[Exception], depth: int = 0) -> list[tuple[int, str]]:
    found = [(depth, kind.__name__)]
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            found += real_tree(child, depth + 1)
    return found
