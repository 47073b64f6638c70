"""Protobuf: schemas, the programs that project records to columns, and the decoders that interpret these programs."""
