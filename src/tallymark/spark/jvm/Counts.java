package tallymark;

import java.io.ByteArrayOutputStream;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import org.apache.spark.util.AccumulatorV2;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Counts the records of a batch by partition while tasks read them.
 *
 * Spark adds what a task has counted when it has succeeded: once for each task of a query's last stage, and again for a
 * task of an earlier stage that runs again. A task reads the records of a partition in the order of their offsets. If a
 * record is counted twice, the counts say so.
 */
public final class Counts extends AccumulatorV2 {
    private static final int MOST_NAMES = 100;

    /** The records of one partition. */
    private static final class Partition implements Serializable {
        final UTF8String topic;
        final int number;
        long records = 0;
        long size = 0;
        long lastOffset = -1;
        long lastMicros = 0;
        long[] dead = new long[4];
        int deadCount = 0;
        /** For each field that the schema does not name: the number of its records, and the offset of the first. */
        HashMap names;

        Partition(UTF8String topic, int number) {
            this.topic = topic;
            this.number = number;
        }
    }

    private HashMap partitions = new HashMap();
    private boolean isTwice = false;
    private transient Partition current;

    void count(UTF8String topic, int partition, long offset, long micros, int size, boolean isDead) {
        if (current == null || current.number != partition || !current.topic.equals(topic)) {
            current = partition(topic, partition);
        }
        if (offset <= current.lastOffset) {
            isTwice = true;
        }
        current.records++;
        current.size += size;
        current.lastOffset = offset;
        current.lastMicros = micros;
        if (isDead) {
            if (current.deadCount == current.dead.length) {
                current.dead = Arrays.copyOf(current.dead, 2 * current.deadCount);
            }
            current.dead[current.deadCount++] = offset;
        }
    }

    /** Counts the names of the record that was counted last. */
    void countNames(Names found, long offset) {
        if (current.names == null) {
            current.names = new HashMap();
        }
        for (Iterator names = found.iterator(); names.hasNext();) {
            Object name = names.next();
            long[] counted = (long[]) current.names.get(name);
            if (counted == null && current.names.size() >= MOST_NAMES) {
                name = Names.OTHERS;
                counted = (long[]) current.names.get(name);
            }
            if (counted == null) {
                counted = new long[] {0, offset};
                current.names.put(name, counted);
            }
            counted[0]++;
        }
    }

    private Partition partition(UTF8String topic, int number) {
        String name = topic + " " + number;
        Partition found = (Partition) partitions.get(name);
        if (found == null) {
            // The bytes of the topic belong to a row, which Spark overwrites.
            found = new Partition(topic.copy(), number);
            partitions.put(name, found);
        }
        return found;
    }

    public boolean isZero() {
        return partitions.isEmpty() && !isTwice;
    }

    public AccumulatorV2 copy() {
        Counts copy = new Counts();
        copy.partitions = new HashMap(partitions);
        copy.isTwice = isTwice;
        return copy;
    }

    public void reset() {
        partitions = new HashMap();
        isTwice = false;
        current = null;
    }

    public void add(Object records) {
        throw new UnsupportedOperationException("records are counted one by one");
    }

    public void merge(AccumulatorV2 other) {
        Counts counts = (Counts) other;
        isTwice |= counts.isTwice;
        for (Iterator names = counts.partitions.keySet().iterator(); names.hasNext();) {
            Object name = names.next();
            isTwice |= partitions.containsKey(name);
            partitions.put(name, counts.partitions.get(name));
        }
    }

    /**
     * The counts as JSON: for each partition its topic, number, records, bytes, last timestamp, dead offsets, and the
     * fields that the schema does not name.
     */
    public Object value() {
        StringBuilder text = new StringBuilder("{\"is_twice\":").append(isTwice).append(",\"partitions\":[");
        for (Iterator found = partitions.values().iterator(); found.hasNext();) {
            Partition partition = (Partition) found.next();
            text.append("[\"").append(partition.topic).append("\",").append(partition.number).append(',');
            text.append(partition.records).append(',').append(partition.size).append(',');
            text.append(partition.lastMicros).append(",[");
            for (int n = 0; n < partition.deadCount; n++) {
                text.append(n == 0 ? "" : ",").append(partition.dead[n]);
            }
            text.append("],{");
            appendNames(partition.names, text);
            text.append(found.hasNext() ? "}]," : "}]");
        }
        return text.append("]}").toString();
    }

    private static void appendNames(HashMap names, StringBuilder text) {
        if (names == null) {
            return;
        }
        for (Iterator all = names.keySet().iterator(); all.hasNext();) {
            String name = (String) all.next();
            long[] counted = (long[]) names.get(name);
            ByteArrayOutputStream quoted = new ByteArrayOutputStream();
            JsonDecoder.quote(name.getBytes(StandardCharsets.UTF_8), quoted);
            text.append(new String(quoted.toByteArray(), StandardCharsets.UTF_8));
            text.append(":[").append(counted[0]).append(',').append(counted[1]);
            text.append(all.hasNext() ? "]," : "]");
        }
    }
}
