"""Decoding of Avro bodies into Arrow columns, as docs/avro.md specifies: schemas, resolution, and two decoders."""
