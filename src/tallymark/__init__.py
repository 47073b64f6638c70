"""tallymark: exactly-once Kafka to database pipelines on PySpark.

Offsets live in the destination database and commit in the same transaction as the rows.
"""

from tallymark.budget import Budget
from tallymark.errors import TallymarkError
from tallymark.pipeline import Pipeline
from tallymark.plan import Limits
from tallymark.positions import Start
from tallymark.source import Bytes, Json, Kafka
from tallymark.spans import Tally

__all__ = ["Budget", "Bytes", "Json", "Kafka", "Limits", "Pipeline", "Start", "Tally", "TallymarkError"]
