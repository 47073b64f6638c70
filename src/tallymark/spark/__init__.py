"""The Spark engine: reads spans of Kafka as DataFrames, decodes and shapes them, and hands them over as Arrow."""
