"""No-loss production: a full buffer blocks, then raises the reason; a final failure stops the producer at once.

python examples/no_loss.py
"""

from __future__ import annotations

from common import ADMIN, BROKERS, new_name
from confluent_kafka.admin import NewTopic

import tallymark as tm
from tallymark.errors import BadInput, BufferFull, NotDelivered, ProducerStopped, RecordTooLarge

topic = new_name("orders")
limit = {"max.message.bytes": "2000"}  # less than the client's limit, so that the broker refuses
ADMIN.create_topics([NewTopic(topic, 1, 1, config=limit)], request_timeout=10)[topic].result()

with tm.Producer(BROKERS) as producer:  # no-loss is the default
    shown = ("acks", "enable.idempotence", "retries", "message.timeout.ms")
    print("settings:", {name: producer.settings[name] for name in shown})
    try:
        producer.send(topic, "x" * 2_000_000)
    except RecordTooLarge as error:
        print("too large, alone:", error)
    producer.send(topic, "fine").result(timeout=30)

try:
    tm.Producer(BROKERS, settings={"acks": 1})
except BadInput as error:
    print("contradiction:", error)

nowhere = tm.Producer("127.0.0.1:1", settings={"queue.buffering.max.messages": 5}, buffer_seconds=1)
try:
    for number in range(10):
        nowhere.send(topic, str(number))
except BufferFull as error:
    print("full:", error)
try:
    nowhere.close(timeout=0)
except NotDelivered as error:
    print("dropped:", error)

producer = tm.Producer(BROKERS, settings={"batch.num.messages": 1})
try:
    sent = [producer.send(topic, "x" * 5000 if number == 3 else str(number)) for number in range(10)]
    producer.flush()
except NotDelivered as error:
    print("not delivered:", error)
try:
    producer.send(topic, "later")
except ProducerStopped as error:
    print("stopped:", error)
print(
    "before the failure:", [one.result().offset for one in sent[:3]], "behind it:", type(sent[-1].exception()).__name__
)
print(producer.statistics())
assert producer.statistics() == (10, 3, 7, 0)
producer.close()
