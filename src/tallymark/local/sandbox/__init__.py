"""Real servers without root, for tests, demos and first steps: Kafka, PostgreSQL, MariaDB, MySQL, Valkey, Redis."""

from tallymark.local.sandbox.box import Sandbox
from tallymark.local.sandbox.cluster import KafkaCluster
from tallymark.local.sandbox.kafka import KafkaBroker
from tallymark.local.sandbox.mariadb import MariaDB
from tallymark.local.sandbox.mysql import MySQL
from tallymark.local.sandbox.postgresql import PostgreSQL
from tallymark.local.sandbox.secure import SecureKafka
from tallymark.local.sandbox.server import Server
from tallymark.local.sandbox.valkey import Redis, Valkey

__all__ = [
    "KafkaBroker",
    "KafkaCluster",
    "MariaDB",
    "MySQL",
    "PostgreSQL",
    "Redis",
    "Sandbox",
    "SecureKafka",
    "Server",
    "Valkey",
]
