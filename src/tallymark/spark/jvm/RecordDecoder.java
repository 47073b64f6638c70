package tallymark;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.unsafe.types.UTF8String;

/** Decodes the keys and values of records, and counts the records. A query calls one method for each record. */
public final class RecordDecoder implements Serializable {
    private final Content keys;
    private final Content values;
    private final Counts counts;
    private final Names[] unnamed;

    /**
     * Keys or values without a decoder stay bytes. The decoders of keys and values collect the fields that the schema
     * does not name in the last two arguments.
     */
    public RecordDecoder(Content keys, Content values, Counts counts, Names ofKeys, Names ofValues) {
        this.keys = keys;
        this.values = values;
        this.counts = counts;
        this.unnamed = new Names[] {ofKeys, ofValues};
    }

    /** The decoded value; null for a record without a value, and for a dead record. */
    public Object value(
        byte[] key, byte[] value, UTF8String topic, int partition, long offset, long micros, ArrayData headers
    ) {
        Object found = decoded(values, value, headers);
        count(key, value, topic, partition, offset, micros, found == null);
        return found == Decoder.NULL ? null : found;
    }

    /** A row of the decoded key and the decoded value; null for a dead record. */
    public Object both(
        byte[] key, byte[] value, UTF8String topic, int partition, long offset, long micros, ArrayData headers
    ) {
        Object foundKey = decoded(keys, key, headers);
        Object found = foundKey == null ? null : decoded(values, value, headers);
        count(key, value, topic, partition, offset, micros, found == null);
        if (found == null) {
            return null;
        }
        Object[] fields = {foundKey == Decoder.NULL ? null : foundKey, found == Decoder.NULL ? null : found};
        return new GenericInternalRow(fields);
    }

    private static Object decoded(Content content, byte[] bytes, ArrayData headers) {
        if (content != null) {
            return content.decode(bytes, headers);
        }
        return bytes == null ? Decoder.NULL : bytes;
    }

    private void count(
        byte[] key, byte[] value, UTF8String topic, int partition, long offset, long micros, boolean isDead
    ) {
        int size = (key == null ? 0 : key.length) + (value == null ? 0 : value.length);
        counts.count(topic, partition, offset, micros, size, isDead);
        for (int n = 0; n < unnamed.length; n++) {
            if (!unnamed[n].isEmpty()) {
                if (!isDead) {
                    counts.countNames(unnamed[n], offset);
                }
                unnamed[n].clear();
            }
        }
    }
}
