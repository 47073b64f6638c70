package tallymark;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.unsafe.types.UTF8String;

/** Decodes the values of records, and counts the records. A query calls one of its methods for each record. */
public final class RecordDecoder implements Serializable {
    private final JsonDecoder decoder;
    private final Counts counts;

    /** Without a schema, values stay bytes. Without counts, nothing is counted. */
    public RecordDecoder(String schema, Counts counts) {
        this.decoder = schema == null ? null : new JsonDecoder(schema);
        this.counts = counts;
    }

    /** The fields of a JSON value; null for a record without a value, and for a value that does not fit. */
    public InternalRow json(byte[] key, byte[] value, UTF8String topic, int partition, long offset, long micros) {
        InternalRow found = value == null ? null : decoder.decode(value);
        count(key, value, topic, partition, offset, micros, found == null && value != null);
        return found;
    }

    public byte[] bytes(byte[] key, byte[] value, UTF8String topic, int partition, long offset, long micros) {
        count(key, value, topic, partition, offset, micros, false);
        return value;
    }

    private void count(
        byte[] key, byte[] value, UTF8String topic, int partition, long offset, long micros, boolean isDead
    ) {
        if (counts != null) {
            int size = (key == null ? 0 : key.length) + (value == null ? 0 : value.length);
            counts.count(topic, partition, offset, micros, size, isDead);
        }
    }
}
