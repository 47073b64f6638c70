"""Change events of Debezium: how they are encoded, and the rows that they describe."""
