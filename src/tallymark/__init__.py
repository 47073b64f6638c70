"""tallymark: exactly-once Kafka to database pipelines on PySpark.

Offsets live in the destination database and commit in the same transaction as the rows.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tallymark.core.budget import Budget
    from tallymark.core.journal import LetterQuery
    from tallymark.core.plan import Limits
    from tallymark.core.retention import Retention
    from tallymark.core.skip_ahead import SkipAhead
    from tallymark.core.spans import Tally
    from tallymark.core.start import Start
    from tallymark.core.tls import Tls
    from tallymark.errors import (
        AccessDenied,
        BadInput,
        BufferFull,
        CommitRefused,
        CommitUnknown,
        Fenced,
        LogTruncated,
        ProducerStopped,
        RecordsLost,
        RecordTooLarge,
        Retry,
        TallymarkError,
        UnknownPartition,
        Unreachable,
    )
    from tallymark.formats.registry_server import Registry
    from tallymark.formats.value import Avro, Bytes, Debezium, Json, Protobuf
    from tallymark.kafka.cluster import Sasl
    from tallymark.kafka.membership import Group, Standalone
    from tallymark.kafka.source import Kafka
    from tallymark.produce.delivery import Metadata
    from tallymark.produce.producer import Producer
    from tallymark.service.app import App
    from tallymark.service.batch import Batch
    from tallymark.service.consumer import Consumer
    from tallymark.service.progress import PartitionProgress
    from tallymark.service.records import Record, Records
    from tallymark.spark.pipeline import Pipeline
    from tallymark.spark.sink import Sink
    from tallymark.stores.transaction import Transaction

__all__ = [
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

_ELSEWHERE = {
    "App": "service.app",
    "Avro": "formats.value",
    "Batch": "service.batch",
    "Budget": "core.budget",
    "Bytes": "formats.value",
    "Consumer": "service.consumer",
    "Debezium": "formats.value",
    "Group": "kafka.membership",
    "Json": "formats.value",
    "Kafka": "kafka.source",
    "LetterQuery": "core.journal",
    "Limits": "core.plan",
    "Metadata": "produce.delivery",
    "PartitionProgress": "service.progress",
    "Pipeline": "spark.pipeline",
    "Producer": "produce.producer",
    "Protobuf": "formats.value",
    "Record": "service.records",
    "Records": "service.records",
    "Registry": "formats.registry_server",
    "Retention": "core.retention",
    "Sasl": "kafka.cluster",
    "Sink": "spark.sink",
    "SkipAhead": "core.skip_ahead",
    "Standalone": "kafka.membership",
    "Start": "core.start",
    "Tally": "core.spans",
    "Tls": "core.tls",
    "Transaction": "stores.transaction",
}
"""The module of every public name that is not an error. It is imported when the name is first used."""


if not TYPE_CHECKING:  # A type checker would take any name for defined.

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'errors')}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
