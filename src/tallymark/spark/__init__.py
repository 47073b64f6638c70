"""The Spark engine: reads spans from Kafka as DataFrames, decodes and shapes them, and returns Arrow tables."""
