"""tallymark: exactly-once Kafka to database pipelines on PySpark.

Offsets live in the destination database and commit in the same transaction as the rows.
"""

from tallymark.app import App
from tallymark.batches import Batch
from tallymark.budget import Budget
from tallymark.cluster import Sasl, Tls
from tallymark.consumer import Consumer
from tallymark.delivery import Metadata
from tallymark.errors import Fenced, Retry, TallymarkError
from tallymark.membership import Group, Standalone
from tallymark.pipeline import Pipeline
from tallymark.places import Place
from tallymark.plan import Limits
from tallymark.positions import Start
from tallymark.producer import Producer
from tallymark.records import Record, Records
from tallymark.skipahead import SkipAhead
from tallymark.source import Bytes, Json, Kafka
from tallymark.spans import Tally
from tallymark.stores.transaction import Transaction
from tallymark.streams import Sink

__all__ = [
    "App",
    "Batch",
    "Budget",
    "Bytes",
    "Consumer",
    "Fenced",
    "Group",
    "Json",
    "Kafka",
    "Limits",
    "Metadata",
    "Pipeline",
    "Place",
    "Producer",
    "Record",
    "Records",
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
]
