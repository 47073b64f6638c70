"""Decodes Avro bodies into Arrow columns, as docs/reference/avro.md specifies: schemas, resolution, two decoders."""
