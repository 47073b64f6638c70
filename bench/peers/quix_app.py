"""A Quix Streams application with its PostgreSQL sink: JSON records of a topic become rows of a table.

Runs in an environment of its own, and takes what it is to do from environment variables, so that no password is in
the list of processes. It ends when it is told to by a signal.
"""

import os
from urllib.parse import unquote, urlsplit

from quixstreams import Application  # type: ignore[import-not-found]
from quixstreams.sinks.community.postgresql import PostgreSQLSink  # type: ignore[import-not-found]

TUNED = {"queued.min.messages": 100_000, "fetch.message.max.bytes": 8 << 20, "fetch.wait.max.ms": 100}


def main() -> None:
    said = os.environ
    url = urlsplit(said["BENCH_URL"])
    sink = PostgreSQLSink(
        host=url.hostname or "",
        port=url.port or 5432,
        dbname=url.path.lstrip("/"),
        user=unquote(url.username or ""),
        password=unquote(url.password or ""),
        table_name=said["BENCH_TABLE"],
        # The table is there, and has no columns for a record's key and time.
        schema_auto_update=False,
        include_metadata=False,
    )
    app = Application(
        broker_address=said["BENCH_BROKERS"],
        consumer_group=said["BENCH_GROUP"],
        auto_offset_reset="earliest",
        commit_every=int(said["BENCH_COMMIT_EVERY"]),
        consumer_extra_config=TUNED,
        auto_create_topics=False,
        loglevel="WARNING",
    )
    app.dataframe(app.topic(said["BENCH_TOPIC"], value_deserializer="json")).sink(sink)
    app.run()


if __name__ == "__main__":
    main()
