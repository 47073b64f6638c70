package tallymark;

/** Decodes the keys or values of one schema. */
public interface Decoder {
    /** The result for a valid value that is NULL. */
    Object NULL = "NULL";

    /** What the bytes from {@code start} on hold, in the form that Spark has inside; null if they don't fit. */
    Object decode(byte[] value, int start);
}
