"""Decoding of Avro bodies into Arrow columns, as docs/avro.md specifies: schemas, their resolution, and two decoders."""
