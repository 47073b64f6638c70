package tallymark;

import java.io.Serializable;
import java.util.HashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The keys or values of records: finds the schema that each was written with.
 *
 * An id precedes the value, as a magic byte and a number, or is in a header, also as a GUID.
 */
public final class Content implements Serializable {
    private static final int FRAME = 5;
    private static final int GUID_FRAME = 17;
    private static final int MOST_INDEXES = 100;

    private final Decoder any;
    private final HashMap byId;
    private final UTF8String header;
    private boolean isIndexed;

    /** Of one schema. If the values are framed, their ids have no effect. */
    public Content(Decoder any, boolean isFramed) {
        this.any = any;
        this.byId = isFramed ? new HashMap() : null;
        this.header = null;
    }

    /** Of the schemas whose decoders are added; the ids are in a header, or without a header in the values. */
    public Content(String header) {
        this.any = null;
        this.byId = new HashMap();
        this.header = header == null ? null : UTF8String.fromString(header);
    }

    /** Read message indexes after ids: Protobuf's schemas have several messages. */
    public void readIndexes() {
        isIndexed = true;
    }

    /**
     * Add the decoder of a schema by its number, or by the hexadecimal digits of its GUID. With message indexes other
     * than 0, a slash and the indexes follow, with dots between them.
     */
    public void add(String id, Decoder decoder) {
        byId.put(id, decoder);
    }

    /** What a value holds; Decoder.NULL if it is NULL, null if it can't be decoded. */
    Object decode(byte[] value, ArrayData headers) {
        if (value == null) {
            return Decoder.NULL;
        }
        if (byId == null) {
            return any.decode(value, 0);
        }
        byte[] frame = header == null ? value : frame(headers);
        if (frame == null || !hasId(frame)) {
            return null;
        }
        if (any != null) {
            return any.decode(value, FRAME);
        }
        int at = frame[0] == 0 ? FRAME : GUID_FRAME;
        Decoder decoder;
        if (!isIndexed || (at < frame.length && frame[at] == 0)) {
            decoder = decoder(frame);
            at++;
        } else {
            int[] end = {at};
            String indexes = indexes(frame, end);
            at = end[0];
            decoder = indexes == null ? null : (Decoder) byId.get(id(frame) + indexes);
        }
        if (decoder == null) {
            return null;
        }
        return decoder.decode(value, header != null ? 0 : isIndexed ? at : FRAME);
    }

    /** The message indexes after an id as in the names of decoders; null if they can't be read. */
    private static String indexes(byte[] frame, int[] at) {
        long count = index(frame, at);
        if (count < 0 || count > MOST_INDEXES) {
            return null;
        }
        StringBuilder found = new StringBuilder();
        for (int n = 0; n < count; n++) {
            long next = index(frame, at);
            if (next < 0) {
                return null;
            }
            found.append(n == 0 ? '/' : '.').append(next);
        }
        String text = found.toString();
        return text.equals("/0") ? "" : text;
    }

    /** A zigzag number; -1 if it is negative, or not a number. */
    private static long index(byte[] frame, int[] at) {
        long found = 0;
        for (int shift = 0; shift < 64 && at[0] < frame.length; shift += 7) {
            long next = frame[at[0]++];
            if (shift == 63 && (next & 255) > 1) {
                return -1;
            }
            found |= (next & 127) << shift;
            if (next >= 0) {
                return (found & 1) == 0 ? found >>> 1 : -1;
            }
        }
        return -1;
    }

    private boolean hasId(byte[] frame) {
        if (frame.length < FRAME || frame[0] == 0) {
            return frame.length >= FRAME;
        }
        return header != null && frame[0] == 1 && frame.length >= GUID_FRAME;
    }

    private transient int lastNumber;
    private transient Decoder last;

    private Decoder decoder(byte[] frame) {
        if (frame[0] != 0) {
            return (Decoder) byId.get(id(frame));
        }
        int number = number(frame);
        if (last == null || number != lastNumber) {
            last = (Decoder) byId.get(Integer.toString(number));
            lastNumber = number;
        }
        return last;
    }

    /** The number, or the hexadecimal digits of the GUID. */
    private static String id(byte[] frame) {
        if (frame[0] == 0) {
            return Integer.toString(number(frame));
        }
        StringBuilder guid = new StringBuilder(32);
        for (int n = 1; n < GUID_FRAME; n++) {
            guid.append(Character.forDigit(frame[n] >> 4 & 15, 16)).append(Character.forDigit(frame[n] & 15, 16));
        }
        return guid.toString();
    }

    private static int number(byte[] frame) {
        return frame[1] << 24 | (frame[2] & 255) << 16 | (frame[3] & 255) << 8 | frame[4] & 255;
    }

    /** The last header of this name, as Kafka's clients read it. */
    private byte[] frame(ArrayData headers) {
        for (int n = headers == null ? -1 : headers.numElements() - 1; n >= 0; n--) {
            InternalRow one = headers.getStruct(n, 2);
            if (!one.isNullAt(0) && one.getUTF8String(0).equals(header)) {
                return one.isNullAt(1) ? null : one.getBinary(1);
            }
        }
        return null;
    }
}
