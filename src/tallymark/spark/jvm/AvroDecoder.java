package tallymark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.Serializable;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Decodes Avro values by a program. formats/avro/program.py describes programs, formats/avro/values.py is the same in
 * Python.
 *
 * Janino compiles this file when a pipeline starts: no lambdas, no generic types.
 */
public final class AvroDecoder implements Decoder, Serializable {
    private static final int DEEPEST_SKIP = 200;
    private static final int MOST_EMPTY = 10000;

    private final Step root;

    public AvroDecoder(String program) throws IOException {
        JsonNode parsed = new ObjectMapper().readTree(program);
        root = new Program(parsed.get("skips")).read(parsed.get("root"));
    }

    public Object decode(byte[] value, int start) {
        try {
            Body body = new Body(value, start);
            Object found = root.read(body);
            if (body.at != value.length) {
                return null;
            }
            return found == null ? NULL : found;
        } catch (Dead error) {
            return null;
        } catch (ArrayIndexOutOfBoundsException error) {
            // The value ends too early. Checking for the end at every byte would cost more.
            return null;
        }
    }

    /** Ends the decoding of a value. */
    static final class Dead extends RuntimeException {
        static final Dead IT = new Dead();

        private Dead() {
            super(null, null, false, false);
        }
    }

    /** A position in the bytes of a value. Every method reads what its name says and moves past it. */
    static final class Body {
        final byte[] bytes;
        int at;
        int empty = MOST_EMPTY;

        Body(byte[] bytes, int start) {
            this.bytes = bytes;
            this.at = start;
        }

        long number() {
            long next = bytes[at++];
            if (next >= 0) {
                return next >>> 1 ^ -(next & 1);
            }
            long found = next & 127;
            int shift = 0;
            do {
                shift += 7;
                next = bytes[at++];
                if (shift == 63 && (next & 255) > 1) {
                    throw Dead.IT;
                }
                found |= (next & 127) << shift;
            } while (next < 0);
            return found >>> 1 ^ -(found & 1);
        }

        int index(int count) {
            long found = number();
            if (found < 0 || found >= count) {
                throw Dead.IT;
            }
            return (int) found;
        }

        /** The number of bytes that follow. */
        int length() {
            return length(number());
        }

        int length(long size) {
            if (size < 0 || size > bytes.length - at) {
                throw Dead.IT;
            }
            return (int) size;
        }

        byte[] take(int size) {
            int start = at;
            at += length(size);
            return Arrays.copyOfRange(bytes, start, at);
        }

        void skipBytes() {
            int size = length();
            at += size;
        }

        UTF8String text() {
            int size = length();
            int start = at;
            at += size;
            UTF8String found = UTF8String.fromBytes(bytes, start, size);
            for (int n = start; n < at; n++) {
                if (bytes[n] < 0) {
                    if (!found.isValid()) {
                        throw Dead.IT;
                    }
                    break;
                }
            }
            return found;
        }

        long block(boolean isEmpty) {
            long count = number();
            if (count < 0) {
                count = -count;
                number();
            }
            if (count < 0 || (count > bytes.length - at && !isEmpty)) {
                throw Dead.IT;
            }
            return count;
        }

        int littleEndian() {
            int found = bytes[at] & 255 | (bytes[at + 1] & 255) << 8 | (bytes[at + 2] & 255) << 16 | bytes[at + 3] << 24;
            at += 4;
            return found;
        }
    }

    /** Makes the steps of a program. */
    static final class Program {
        private final JsonNode skips;
        private final HashMap records = new HashMap();

        Program(JsonNode skips) {
            this.skips = skips;
        }

        Step read(JsonNode step) {
            String kind = step.get("read").asText();
            if (kind.equals("record")) {
                return new RecordStep(step, this);
            }
            if (kind.equals("array")) {
                return new ArrayStep(read(step.get("items")), step.has("empty"));
            }
            if (kind.equals("map")) {
                return new MapStep(read(step.get("values")));
            }
            if (kind.equals("union")) {
                return new UnionStep(all(step.get("branches")));
            }
            if (kind.equals("branch")) {
                return new BranchStep(step.get("to").asInt(), step.get("width").asInt(), read(step.get("step")));
            }
            if (kind.equals("enum")) {
                return new EnumStep(step.get("symbols"));
            }
            return plain(kind, step);
        }

        private static Step plain(String kind, JsonNode step) {
            String as = step.has("as") ? step.get("as").asText() : "";
            if (kind.equals("int") || kind.equals("long")) {
                return number(as, kind.equals("int"), step);
            }
            if (kind.equals("float") || kind.equals("double")) {
                return new FloatingStep(kind.equals("double"), as.equals("double"));
            }
            if (kind.equals("bytes") || kind.equals("fixed")) {
                int size = kind.equals("fixed") ? step.get("size").asInt() : -1;
                if (as.equals("decimal")) {
                    return new DecimalStep(size, step.get("precision").asInt(), step.get("scale").asInt());
                }
                if (as.equals("uuid")) {
                    return new UuidStep(size);
                }
                if (as.equals("instant-text")) {
                    return new InstantStep();
                }
                return as.equals("duration") ? (Step) new DurationStep() : new BytesStep(size, as.equals("string"));
            }
            if (kind.equals("boolean")) {
                return new BooleanStep();
            }
            return new NullStep(kind.equals("dead"));
        }

        private static Step number(String as, boolean isInt, JsonNode step) {
            if (as.equals("int") || as.equals("long") || as.equals("float") || as.equals("double")) {
                return new NumberStep(isInt, "int long float double".indexOf(as));
            }
            long least = step.get("least").asLong();
            long most = step.get("most").asLong();
            long times = step.has("times") ? step.get("times").asLong() : 1;
            if (as.equals("time")) {
                return new TimeStep(isInt, least, most, times, step.get("digits").asInt());
            }
            return new MomentStep(isInt, as.equals("date"), least, most, step.has("over") ? step.get("over").asLong() : 1, times);
        }

        Step[] all(JsonNode steps) {
            Step[] found = new Step[steps.size()];
            for (int n = 0; n < found.length; n++) {
                found[n] = read(steps.required(n));
            }
            return found;
        }

        Step field(JsonNode step) {
            return step.has("read") ? read(step) : new SkipStep(skip(step));
        }

        Skip skip(JsonNode step) {
            String kind = step.get("skip").asText();
            if (kind.equals("fixed")) {
                return new Skip(kind, step.get("size").asInt(), new Skip[0]);
            }
            if (kind.equals("record")) {
                return record(step.get("name").asText());
            }
            if (kind.equals("array") || kind.equals("map")) {
                Skip part = skip(step.get(kind.equals("array") ? "items" : "values"));
                return new Skip(kind, 0, new Skip[] {part});
            }
            return new Skip(kind, 0, kind.equals("union") ? parts(step.get("branches")) : new Skip[0]);
        }

        private Skip[] parts(JsonNode steps) {
            Skip[] found = new Skip[steps.size()];
            for (int n = 0; n < found.length; n++) {
                found[n] = skip(steps.required(n));
            }
            return found;
        }

        private Skip record(String name) {
            Skip found = (Skip) records.get(name);
            if (found == null) {
                found = new Skip("record", 0, null);
                // Known before its fields, because these may contain it.
                records.put(name, found);
                found.parts = parts(skips.get(name));
            }
            return found;
        }
    }

    /** Reads a value in the form that Spark has inside. */
    abstract static class Step implements Serializable {
        abstract Object read(Body body);
    }

    static final class NullStep extends Step {
        private final boolean isDead;

        NullStep(boolean isDead) {
            this.isDead = isDead;
        }

        Object read(Body body) {
            if (isDead) {
                throw Dead.IT;
            }
            return null;
        }
    }

    static final class BooleanStep extends Step {
        Object read(Body body) {
            byte found = body.bytes[body.at++];
            if (found != 0 && found != 1) {
                throw Dead.IT;
            }
            return Boolean.valueOf(found == 1);
        }
    }

    /** A whole number: an int, a long, a float or a double. */
    static final class NumberStep extends Step {
        private final boolean isInt;
        private final int as;

        NumberStep(boolean isInt, int as) {
            this.isInt = isInt;
            this.as = as;
        }

        Object read(Body body) {
            long found = whole(body, isInt);
            if (as == 0) {
                return Integer.valueOf((int) found);
            }
            if (as == 4) {
                return Long.valueOf(found);
            }
            return as == 9 ? (Object) Float.valueOf((float) found) : (Object) Double.valueOf((double) found);
        }
    }

    static long whole(Body body, boolean isInt) {
        long found = body.number();
        if (isInt && found != (int) found) {
            throw Dead.IT;
        }
        return found;
    }

    static long whole(Body body, boolean isInt, long least, long most) {
        long found = whole(body, isInt);
        if (found < least || found > most) {
            throw Dead.IT;
        }
        return found;
    }

    /** A date or a timestamp. */
    static final class MomentStep extends Step {
        private final boolean isInt;
        private final boolean isDate;
        private final long least;
        private final long most;
        private final long over;
        private final long times;

        MomentStep(boolean isInt, boolean isDate, long least, long most, long over, long times) {
            this.isInt = isInt;
            this.isDate = isDate;
            this.least = least;
            this.most = most;
            this.over = over;
            this.times = times;
        }

        Object read(Body body) {
            long found = whole(body, isInt, least, most);
            return isDate ? (Object) Integer.valueOf((int) found) : Long.valueOf(Math.floorDiv(found, over) * times);
        }
    }

    /** A time of the day, as text. */
    static final class TimeStep extends Step {
        private final boolean isInt;
        private final long least;
        private final long most;
        private final long times;
        private final int digits;

        TimeStep(boolean isInt, long least, long most, long times, int digits) {
            this.isInt = isInt;
            this.least = least;
            this.most = most;
            this.times = times;
            this.digits = digits;
        }

        Object read(Body body) {
            long rest = whole(body, isInt, least, most) * times;
            byte[] text = new byte[9 + digits];
            for (int n = text.length - 1; n > 8; n--) {
                text[n] = (byte) ('0' + rest % 10);
                rest /= 10;
            }
            text[8] = '.';
            int seconds = (int) rest;
            pair(text, 6, seconds % 60);
            text[5] = ':';
            pair(text, 3, seconds / 60 % 60);
            text[2] = ':';
            pair(text, 0, seconds / 3600);
            return UTF8String.fromBytes(text);
        }

        private static void pair(byte[] text, int at, int number) {
            text[at] = (byte) ('0' + number / 10);
            text[at + 1] = (byte) ('0' + number % 10);
        }
    }

    static final class FloatingStep extends Step {
        private final boolean isDouble;
        private final boolean asDouble;

        FloatingStep(boolean isDouble, boolean asDouble) {
            this.isDouble = isDouble;
            this.asDouble = asDouble;
        }

        Object read(Body body) {
            int low = body.littleEndian();
            if (isDouble) {
                return Double.valueOf(Double.longBitsToDouble(low & 0xffffffffL | (long) body.littleEndian() << 32));
            }
            float found = Float.intBitsToFloat(low);
            return asDouble ? (Object) Double.valueOf((double) found) : Float.valueOf(found);
        }
    }

    /** Bytes or text; of a fixed size if that is not negative. */
    static final class BytesStep extends Step {
        private final int size;
        private final boolean isText;

        BytesStep(int size, boolean isText) {
            this.size = size;
            this.isText = isText;
        }

        Object read(Body body) {
            return isText ? (Object) body.text() : body.take(size < 0 ? body.length() : size);
        }
    }

    static final class DecimalStep extends Step {
        private final int size;
        private final int precision;
        private final int scale;
        private final BigInteger limit;

        DecimalStep(int size, int precision, int scale) {
            this.size = size;
            this.precision = precision;
            this.scale = scale;
            this.limit = BigInteger.TEN.pow(precision);
        }

        Object read(Body body) {
            byte[] bytes = body.take(size < 0 ? body.length() : size);
            if (bytes.length == 0) {
                throw Dead.IT;
            }
            BigInteger number = new BigInteger(bytes);
            if (number.abs().compareTo(limit) >= 0) {
                throw Dead.IT;
            }
            if (precision <= Decimal.MAX_LONG_DIGITS()) {
                return Decimal.createUnsafe(number.longValue(), precision, scale);
            }
            return Decimal.apply(new scala.math.BigDecimal(new BigDecimal(number, scale)), precision, scale);
        }
    }

    /** A timestamp that was written as text. */
    static final class InstantStep extends Step {
        Object read(Body body) {
            byte[] text = body.take(body.length());
            try {
                return Long.valueOf(JsonDecoder.Time.of(text, JsonDecoder.Time.MOMENT));
            } catch (JsonDecoder.Unfit error) {
                throw Dead.IT;
            } catch (ArrayIndexOutOfBoundsException error) {
                throw Dead.IT;
            }
        }
    }

    static final class UuidStep extends Step {
        private static final String DIGITS = "0123456789abcdef";
        private static final int LENGTH = 36;
        private final int size;

        UuidStep(int size) {
            this.size = size;
        }

        Object read(Body body) {
            byte[] bytes = body.take(size < 0 ? body.length() : size);
            return UTF8String.fromBytes(size < 0 ? checked(bytes) : written(bytes));
        }

        private static boolean isDash(int at) {
            return at == 8 || at == 13 || at == 18 || at == 23;
        }

        private static byte[] checked(byte[] text) {
            if (text.length != LENGTH) {
                throw Dead.IT;
            }
            for (int n = 0; n < LENGTH; n++) {
                if (text[n] >= 'A' && text[n] <= 'F') {
                    text[n] += 'a' - 'A';
                }
                if (isDash(n) ? text[n] != '-' : DIGITS.indexOf(text[n]) < 0) {
                    throw Dead.IT;
                }
            }
            return text;
        }

        private static byte[] written(byte[] bytes) {
            byte[] text = new byte[LENGTH];
            int digit = 0;
            for (int n = 0; n < LENGTH; n++) {
                if (isDash(n)) {
                    text[n] = '-';
                } else {
                    text[n] = (byte) DIGITS.charAt(bytes[digit / 2] >> (digit % 2 == 0 ? 4 : 0) & 15);
                    digit++;
                }
            }
            return text;
        }
    }

    static final class DurationStep extends Step {
        Object read(Body body) {
            body.length(12);
            Object[] parts = new Object[3];
            for (int n = 0; n < 3; n++) {
                parts[n] = Long.valueOf(body.littleEndian() & 0xffffffffL);
            }
            return new GenericInternalRow(parts);
        }
    }

    static final class EnumStep extends Step {
        private final UTF8String[] symbols;

        EnumStep(JsonNode names) {
            symbols = new UTF8String[names.size()];
            for (int n = 0; n < symbols.length; n++) {
                symbols[n] = names.required(n).isNull() ? null : UTF8String.fromString(names.required(n).asText());
            }
        }

        Object read(Body body) {
            UTF8String found = symbols[body.index(symbols.length)];
            if (found == null) {
                throw Dead.IT;
            }
            return found;
        }
    }

    static final class ArrayStep extends Step {
        private final Step items;
        private final boolean isEmpty;

        ArrayStep(Step items, boolean isEmpty) {
            this.items = items;
            this.isEmpty = isEmpty;
        }

        Object read(Body body) {
            ArrayList values = new ArrayList();
            for (long count = body.block(isEmpty); count > 0; count = body.block(isEmpty)) {
                if (isEmpty) {
                    if (count > body.empty) {
                        throw Dead.IT;
                    }
                    body.empty -= (int) count;
                }
                for (long n = 0; n < count; n++) {
                    values.add(items.read(body));
                }
            }
            return new GenericArrayData(values.toArray());
        }
    }

    static final class MapStep extends Step {
        private final Step values;

        MapStep(Step values) {
            this.values = values;
        }

        Object read(Body body) {
            LinkedHashMap pairs = new LinkedHashMap();
            for (long count = body.block(false); count > 0; count = body.block(false)) {
                for (long n = 0; n < count; n++) {
                    UTF8String name = body.text();
                    pairs.put(name, values.read(body));
                }
            }
            return new ArrayBasedMapData(
                new GenericArrayData(pairs.keySet().toArray()), new GenericArrayData(pairs.values().toArray())
            );
        }
    }

    static final class RecordStep extends Step {
        private final Object[] empty;
        private final Step[] steps;
        private final int[] places;

        RecordStep(JsonNode step, Program program) {
            empty = new Object[step.get("width").asInt()];
            JsonNode defaults = step.get("defaults");
            for (int n = 0; n < defaults.size(); n++) {
                JsonNode one = defaults.required(n);
                byte[] bytes = bytes(one.get("bytes").asText());
                empty[one.get("to").asInt()] = program.read(one.get("step")).read(new Body(bytes, 0));
            }
            JsonNode fields = step.get("fields");
            steps = new Step[fields.size()];
            places = new int[steps.length];
            for (int n = 0; n < steps.length; n++) {
                steps[n] = program.field(fields.required(n).get("step"));
                places[n] = fields.required(n).get("to").asInt();
            }
        }

        Object read(Body body) {
            Object[] values = (Object[]) empty.clone();
            for (int n = 0; n < steps.length; n++) {
                Object found = steps[n].read(body);
                if (places[n] >= 0) {
                    values[places[n]] = found;
                }
            }
            return new GenericInternalRow(values);
        }

        private static byte[] bytes(String digits) {
            byte[] found = new byte[digits.length() / 2];
            for (int n = 0; n < found.length; n++) {
                found[n] = (byte) Integer.parseInt(digits.substring(2 * n, 2 * n + 2), 16);
            }
            return found;
        }
    }

    static final class UnionStep extends Step {
        private final Step[] branches;

        UnionStep(Step[] branches) {
            this.branches = branches;
        }

        Object read(Body body) {
            return branches[body.index(branches.length)].read(body);
        }
    }

    static final class BranchStep extends Step {
        private final int to;
        private final int width;
        private final Step step;

        BranchStep(int to, int width, Step step) {
            this.to = to;
            this.width = width;
            this.step = step;
        }

        Object read(Body body) {
            Object[] values = new Object[width];
            values[to] = step.read(body);
            return new GenericInternalRow(values);
        }
    }

    static final class SkipStep extends Step {
        private final Skip skip;

        SkipStep(Skip skip) {
            this.skip = skip;
        }

        Object read(Body body) {
            if (!skip.one(body)) {
                skip.all(body);
            }
            return null;
        }
    }

    /** Moves past a value. Uses no recursion, because records may contain themselves. */
    static final class Skip implements Serializable {
        private final boolean isVarint;
        private final boolean isBytes;
        private final boolean isFixed;
        private final boolean isUnion;
        private final boolean isRecord;
        private final boolean isMap;
        private final int size;
        Skip[] parts;

        Skip(String kind, int size, Skip[] parts) {
            isVarint = kind.equals("varint");
            isBytes = kind.equals("bytes");
            isFixed = kind.equals("fixed");
            isUnion = kind.equals("union");
            isRecord = kind.equals("record");
            isMap = kind.equals("map");
            this.size = size;
            this.parts = parts;
        }

        /** Skip a value without parts; returns whether it was one. */
        boolean one(Body body) {
            if (isVarint) {
                body.number();
            } else if (isBytes) {
                body.skipBytes();
            } else if (isFixed) {
                body.at += body.length(size);
            } else {
                return false;
            }
            return true;
        }

        void all(Body body) {
            ArrayDeque waiting = new ArrayDeque();
            waiting.push(new Waiting(this, 0, 0));
            while (!waiting.isEmpty()) {
                Waiting next = (Waiting) waiting.pop();
                Skip skip = next.skip;
                if (skip.isUnion) {
                    push(skip.parts[body.index(skip.parts.length)], next.depth, body, waiting);
                } else if (skip.isRecord) {
                    skip.fields(next, body, waiting);
                } else {
                    skip.items(next, body, waiting);
                }
            }
        }

        private static void push(Skip skip, int depth, Body body, ArrayDeque waiting) {
            if (!skip.one(body)) {
                waiting.push(new Waiting(skip, depth, 0));
            }
        }

        /** Skip fields until one has parts; that one comes first, and the rest waits. */
        private void fields(Waiting record, Body body, ArrayDeque waiting) {
            if (record.depth >= DEEPEST_SKIP) {
                throw Dead.IT;
            }
            int n = (int) record.left;
            while (n < parts.length && parts[n].one(body)) {
                n++;
            }
            if (n < parts.length) {
                waiting.push(new Waiting(this, record.depth, n + 1));
                waiting.push(new Waiting(parts[n], record.depth + 1, 0));
            }
        }

        /** Skip items until one has parts; that one comes first, and the rest of the block waits. */
        private void items(Waiting array, Body body, ArrayDeque waiting) {
            boolean isEmpty = !isMap && parts[0].isFixed && parts[0].size == 0;
            long left = array.left;
            while (true) {
                if (left == 0) {
                    left = body.block(isEmpty);
                    if (left == 0) {
                        return;
                    }
                    if (isEmpty) {
                        left = 0;
                        continue;
                    }
                }
                left--;
                if (isMap) {
                    body.skipBytes();
                }
                if (!parts[0].one(body)) {
                    // With none left, the next block follows.
                    waiting.push(new Waiting(this, array.depth, left));
                    waiting.push(new Waiting(parts[0], array.depth, 0));
                    return;
                }
            }
        }
    }

    /** A value that is not skipped yet: in a record from a field on, in an array or a map with so many items left. */
    static final class Waiting {
        final Skip skip;
        final int depth;
        final long left;

        Waiting(Skip skip, int depth, long left) {
            this.skip = skip;
            this.depth = depth;
            this.left = left;
        }
    }
}
