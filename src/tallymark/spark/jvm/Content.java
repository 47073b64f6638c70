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

    private final Decoder any;
    private final HashMap byId;
    private final UTF8String header;

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

    /** Add the decoder of a schema by its number, or by the hexadecimal digits of its GUID. */
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
        Decoder decoder = any == null ? decoder(frame) : any;
        return decoder == null ? null : decoder.decode(value, header == null ? FRAME : 0);
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
            StringBuilder guid = new StringBuilder(32);
            for (int n = 1; n < GUID_FRAME; n++) {
                guid.append(Character.forDigit(frame[n] >> 4 & 15, 16)).append(Character.forDigit(frame[n] & 15, 16));
            }
            return (Decoder) byId.get(guid.toString());
        }
        int number = frame[1] << 24 | (frame[2] & 255) << 16 | (frame[3] & 255) << 8 | frame[4] & 255;
        if (last == null || number != lastNumber) {
            last = (Decoder) byId.get(Integer.toString(number));
            lastNumber = number;
        }
        return last;
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
