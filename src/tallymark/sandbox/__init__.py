"""Real servers without root, for tests, demos and first steps: Kafka, PostgreSQL, MariaDB, MySQL, Valkey, Redis."""

from tallymark.sandbox.box import Sandbox
from tallymark.sandbox.cluster import KafkaCluster
from tallymark.sandbox.kafka import Kafka
from tallymark.sandbox.mariadb import MariaDB
from tallymark.sandbox.mysql import MySQL
from tallymark.sandbox.postgresql import PostgreSQL
from tallymark.sandbox.secure import SecureKafka
from tallymark.sandbox.server import Server
from tallymark.sandbox.valkey import Redis, Valkey

__all__ = [
    "Kafka",
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
