"""The rules of exactly-once processing, independent of Kafka, Spark, databases and the clock."""
