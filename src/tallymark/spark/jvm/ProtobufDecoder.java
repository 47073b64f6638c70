package tallymark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.Serializable;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.MathContext;
import java.math.RoundingMode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Decodes Protobuf messages by a program. formats/protobuf/program.py describes programs, formats/protobuf/values.py is the
 * same in Python.
 *
 * Janino compiles this file when a pipeline starts: no lambdas, no generic types.
 */
public final class ProtobufDecoder implements Decoder, Serializable {
    private static final int VARINT = 0;
    private static final int FIXED64 = 1;
    private static final int LENGTH = 2;
    private static final int GROUP = 3;
    private static final int END_GROUP = 4;
    private static final int FIXED32 = 5;
    private static final int DEEPEST_GROUP = 100;
    private static final int DEEPEST_JSON = 50;
    private static final long LOW = 0xffffffffL;

    private final MergedStep root;
    /** If the value is one of several types: the number of types, and which of them. */
    private final int width;
    private final int to;

    public ProtobufDecoder(String program) throws IOException {
        JsonNode step = new ObjectMapper().readTree(program);
        boolean isBranch = step.get("read").asText().equals("branch");
        root = (MergedStep) step(isBranch ? step.get("step") : step);
        width = isBranch ? step.get("width").asInt() : 0;
        to = isBranch ? step.get("to").asInt() : 0;
    }

    public Object decode(byte[] value, int start) {
        try {
            Body body = new Body(value, start);
            Object state = root.begin();
            root.add(body, state);
            Object found = root.finish(state);
            if (width == 0) {
                return found;
            }
            Object[] types = new Object[width];
            types[to] = found;
            return new GenericInternalRow(types);
        } catch (Dead error) {
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
        /** Where the current message ends. */
        int end;

        Body(byte[] bytes, int start) {
            this.bytes = bytes;
            this.at = start;
            this.end = bytes.length;
            if (start > end) {
                throw Dead.IT;
            }
        }

        long varint() {
            long found = 0;
            for (int shift = 0; shift < 64; shift += 7) {
                if (at >= end) {
                    throw Dead.IT;
                }
                long next = bytes[at++];
                if (shift == 63 && (next & 255) > 1) {
                    throw Dead.IT;
                }
                found |= (next & 127) << shift;
                if (next >= 0) {
                    return found;
                }
            }
            throw Dead.IT;
        }

        /** The number of a field and its wire type, in the lowest three bits. */
        long tag() {
            long found = varint();
            if (found < 8 || found > LOW) {
                throw Dead.IT;
            }
            return found;
        }

        /** The number of bytes that follow. */
        int length() {
            return checked(varint());
        }

        int checked(long size) {
            if (size < 0 || size > end - at) {
                throw Dead.IT;
            }
            return (int) size;
        }

        byte[] content() {
            int size = length();
            at += size;
            return Arrays.copyOfRange(bytes, at - size, at);
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

        long fixed(int size) {
            int start = at;
            checked(size);
            at += size;
            long found = 0;
            for (int n = size - 1; n >= 0; n--) {
                found = found << 8 | bytes[start + n] & 255;
            }
            return found;
        }

        /** Let the current message end after the length that follows. Returns the end of the outer one. */
        int enter() {
            int outer = end;
            int size = length();
            end = at + size;
            return outer;
        }

        /** Move past the value of a field; of a group, past all of its fields. */
        void skip(long number, int wire) {
            if (wire != GROUP) {
                skipValue(wire);
                return;
            }
            long[] open = new long[DEEPEST_GROUP];
            int depth = 1;
            open[0] = number;
            while (depth > 0) {
                long tag = tag();
                int next = (int) (tag & 7);
                if (next == GROUP) {
                    if (depth >= DEEPEST_GROUP) {
                        throw Dead.IT;
                    }
                    open[depth++] = tag >>> 3;
                } else if (next == END_GROUP) {
                    depth--;
                    if (open[depth] != tag >>> 3) {
                        throw Dead.IT;
                    }
                } else {
                    skipValue(next);
                }
            }
        }

        private void skipValue(int wire) {
            if (wire == VARINT) {
                varint();
            } else if (wire == LENGTH) {
                int size = length();
                at += size;
            } else if (wire == FIXED64 || wire == FIXED32) {
                at += checked(wire == FIXED64 ? 8 : 4);
            } else {
                throw Dead.IT;
            }
        }
    }

    static Step step(JsonNode step) {
        String kind = step.get("read").asText();
        if (kind.equals("message")) {
            return new MessageStep(step);
        }
        if (kind.equals("map")) {
            return new MapStep((MessageStep) step(step.get("entry")));
        }
        if (kind.equals("json")) {
            return new JsonStep(step.get("of").asText());
        }
        String as = step.get("as").asText();
        if (kind.equals("bytes")) {
            return new BytesStep(as.equals("string"));
        }
        if (kind.equals("float") || kind.equals("double")) {
            return new FloatingStep(kind.equals("double"), as.equals("double"));
        }
        return new NumberStep(kind, as, step);
    }

    /** Reads a value in the form that Spark has inside. */
    abstract static class Step implements Serializable {
        final int wire;

        Step(int wire) {
            this.wire = wire;
        }

        abstract Object read(Body body);
    }

    /** A value that may be written in several pieces, which are merged. */
    abstract static class MergedStep extends Step {
        MergedStep() {
            super(LENGTH);
        }

        /** The state before the first piece. */
        abstract Object begin();

        /** Add a piece, which ends where the body ends. */
        abstract void add(Body body, Object state);

        abstract Object finish(Object state);

        final void piece(Body body, Object state) {
            int outer = body.enter();
            add(body, state);
            body.end = outer;
        }

        Object read(Body body) {
            Object state = begin();
            piece(body, state);
            return finish(state);
        }
    }

    static final class NumberStep extends Step {
        private final int size;
        private final boolean isTruth;
        private final boolean isZigzag;
        private final boolean isShort;
        private final boolean isSigned;
        private final String as;
        private final boolean isInt;
        private final boolean isLong;
        private final boolean hasLeast;
        private final boolean hasMost;
        private final long least;
        private final long most;
        private final HashMap symbols = new HashMap();

        NumberStep(String kind, String as, JsonNode step) {
            super(kind.endsWith("fixed64") ? FIXED64 : kind.endsWith("fixed32") ? FIXED32 : VARINT);
            this.size = wire == FIXED64 ? 8 : 4;
            this.isTruth = kind.equals("bool");
            this.isZigzag = kind.startsWith("sint");
            this.isShort = kind.endsWith("32");
            this.isSigned = !kind.startsWith("u") && !kind.startsWith("fixed");
            this.as = as;
            this.isInt = as.equals("int");
            this.isLong = as.equals("long");
            this.hasLeast = step.has("least");
            this.hasMost = step.has("most");
            this.least = hasLeast ? step.get("least").asLong() : 0;
            this.most = hasMost ? step.get("most").asLong() : 0;
            if (as.equals("enum")) {
                Iterator names = step.get("symbols").fields();
                while (names.hasNext()) {
                    Map.Entry one = (Map.Entry) names.next();
                    UTF8String name = UTF8String.fromString(((JsonNode) one.getValue()).asText());
                    symbols.put(Long.valueOf((String) one.getKey()), name);
                }
            }
        }

        Object read(Body body) {
            long found = whole(wire == VARINT ? body.varint() : body.fixed(size));
            // Of an unsigned number of 64 bits, half are above all limits.
            boolean isBeyond = !isSigned && !isShort && found < 0;
            if ((hasLeast && found < least && !isBeyond) || (hasMost && (found > most || isBeyond))) {
                throw Dead.IT;
            }
            if (isLong) {
                return Long.valueOf(found);
            }
            return isInt ? (Object) Integer.valueOf((int) found) : converted(found, isBeyond);
        }

        private long whole(long raw) {
            if (isTruth) {
                return raw == 0 ? 0 : 1;
            }
            long found = isShort ? raw & LOW : raw;
            if (isZigzag) {
                return found >>> 1 ^ -(found & 1);
            }
            return isShort && isSigned ? (int) found : found;
        }

        private Object converted(long found, boolean isBeyond) {
            if (as.equals("boolean")) {
                return Boolean.valueOf(found != 0);
            }
            if (as.equals("truth")) {
                return UTF8String.fromString(found != 0 ? "true" : "false");
            }
            String digits = isBeyond ? Long.toUnsignedString(found) : Long.toString(found);
            if (as.equals("decimal")) {
                return Decimal.apply(new scala.math.BigDecimal(new BigDecimal(new BigInteger(digits))), 20, 0);
            }
            Object name = symbols.get(Long.valueOf(found));
            return name == null ? UTF8String.fromString(digits) : name;
        }
    }

    static final class FloatingStep extends Step {
        private final boolean isDouble;
        private final boolean asDouble;

        FloatingStep(boolean isDouble, boolean asDouble) {
            super(isDouble ? FIXED64 : FIXED32);
            this.isDouble = isDouble;
            this.asDouble = asDouble;
        }

        Object read(Body body) {
            if (isDouble) {
                return Double.valueOf(Double.longBitsToDouble(body.fixed(8)));
            }
            float found = Float.intBitsToFloat((int) body.fixed(4));
            return asDouble ? (Object) Double.valueOf((double) found) : Float.valueOf(found);
        }
    }

    static final class BytesStep extends Step {
        private final boolean isText;

        BytesStep(boolean isText) {
            super(LENGTH);
            this.isText = isText;
        }

        Object read(Body body) {
            return isText ? (Object) body.text() : body.content();
        }
    }

    /** A field of a message: where its values go, and how they are read. */
    static final class Field implements Serializable {
        final int to;
        final long number;
        final Step step;
        final boolean isMany;
        final boolean isMerged;
        private final boolean isPacked;
        private final int[] clears;

        Field(JsonNode part) {
            to = part.get("to").asInt();
            number = part.get("number").asLong();
            clears = places(part.get("clears"));
            step = to < 0 ? null : step(part.get("step"));
            isMany = to >= 0 && part.get("many").asBoolean();
            isPacked = to >= 0 && part.get("packed").asBoolean();
            isMerged = !isMany && step instanceof MergedStep;
        }

        void read(Body body, int wire, Object[] state) {
            for (int n = 0; n < clears.length; n++) {
                state[clears[n]] = null;
            }
            if (to < 0) {
                body.skip(number, wire);
            } else if (wire == step.wire) {
                add(body, state);
            } else if (wire == LENGTH && isPacked) {
                int outer = body.enter();
                while (body.at < body.end) {
                    add(body, state);
                }
                body.end = outer;
            } else {
                throw Dead.IT;
            }
        }

        private void add(Body body, Object[] state) {
            if (isMerged) {
                MergedStep merged = (MergedStep) step;
                if (state[to] == null) {
                    state[to] = merged.begin();
                }
                merged.piece(body, state[to]);
            } else if (isMany) {
                if (state[to] == null) {
                    state[to] = new ArrayList();
                }
                ((ArrayList) state[to]).add(step.read(body));
            } else {
                state[to] = step.read(body);
            }
        }
    }

    static int[] places(JsonNode numbers) {
        int[] found = new int[numbers.size()];
        for (int n = 0; n < found.length; n++) {
            found[n] = numbers.required(n).asInt();
        }
        return found;
    }

    static final class MessageStep extends MergedStep {
        private static final int FEW = 256;
        private static final long FIRST_SECOND = -62135596800L;
        private static final long LAST_SECOND = 253402300799L;

        private final int width;
        private final boolean isStruct;
        private final boolean isTimestamp;
        private final boolean isPaths;
        private final Field[] fields;
        /** The fields by their numbers, as far as these are small. */
        private final Field[] few;
        private final HashMap others = new HashMap();
        private final int[] lists;
        private final int[] maps;
        private final int[] defaultPlaces;
        private final Object[] defaults;

        MessageStep(JsonNode step) {
            width = step.get("width").asInt();
            String as = step.get("as").asText();
            isStruct = as.equals("struct");
            isTimestamp = as.equals("timestamp");
            isPaths = as.equals("paths");
            lists = places(step.get("lists"));
            maps = places(step.get("maps"));
            JsonNode parts = step.get("fields");
            fields = new Field[parts.size()];
            few = new Field[FEW];
            for (int n = 0; n < fields.length; n++) {
                Field field = new Field(parts.required(n));
                fields[n] = field;
                if (field.number < FEW) {
                    few[(int) field.number] = field;
                } else {
                    others.put(Long.valueOf(field.number), field);
                }
            }
            JsonNode given = step.get("defaults");
            defaultPlaces = new int[given.size()];
            defaults = new Object[given.size()];
            for (int n = 0; n < defaults.length; n++) {
                JsonNode one = given.required(n);
                defaultPlaces[n] = one.get("to").asInt();
                Step read = one.has("step") ? ProtobufDecoder.step(one.get("step")) : own(defaultPlaces[n]);
                defaults[n] = read.read(new Body(bytes(one.get("bytes").asText()), 0));
            }
        }

        private Step own(int to) {
            for (int n = 0; n < fields.length; n++) {
                if (fields[n].to == to) {
                    return fields[n].step;
                }
            }
            throw new IllegalArgumentException();
        }

        private static byte[] bytes(String digits) {
            byte[] found = new byte[digits.length() / 2];
            for (int n = 0; n < found.length; n++) {
                found[n] = (byte) Integer.parseInt(digits.substring(2 * n, 2 * n + 2), 16);
            }
            return found;
        }

        Object begin() {
            return new Object[width];
        }

        void add(Body body, Object state) {
            Object[] values = (Object[]) state;
            while (body.at < body.end) {
                long tag = body.tag();
                long number = tag >>> 3;
                Field field = number < FEW ? few[(int) number] : (Field) others.get(Long.valueOf(number));
                if (field == null) {
                    int wire = (int) (tag & 7);
                    body.skip(number, wire);
                } else {
                    field.read(body, (int) (tag & 7), values);
                }
            }
        }

        Object finish(Object state) {
            Object[] values = (Object[]) state;
            for (int n = 0; n < fields.length; n++) {
                int to = fields[n].to;
                if (to >= 0 && values[to] != null && fields[n].isMerged) {
                    values[to] = ((MergedStep) fields[n].step).finish(values[to]);
                }
            }
            for (int n = 0; n < lists.length; n++) {
                ArrayList items = (ArrayList) values[lists[n]];
                values[lists[n]] = new GenericArrayData(items == null ? new Object[0] : items.toArray());
            }
            for (int n = 0; n < maps.length; n++) {
                if (values[maps[n]] == null) {
                    values[maps[n]] = MapStep.map(new LinkedHashMap());
                }
            }
            for (int n = 0; n < defaults.length; n++) {
                if (values[defaultPlaces[n]] == null) {
                    values[defaultPlaces[n]] = defaults[n];
                }
            }
            return isStruct ? new GenericInternalRow(values) : formed(values);
        }

        private Object formed(Object[] values) {
            if (isTimestamp) {
                long seconds = ((Long) values[0]).longValue();
                int nanos = ((Integer) values[1]).intValue();
                if (seconds < FIRST_SECOND || seconds > LAST_SECOND || nanos < 0 || nanos >= 1000000000) {
                    throw Dead.IT;
                }
                return Long.valueOf(seconds * 1000000 + nanos / 1000);
            }
            if (!isPaths) {
                return values[0];
            }
            Object[] paths = ((GenericArrayData) values[0]).array();
            UTF8String[] texts = new UTF8String[paths.length];
            System.arraycopy(paths, 0, texts, 0, paths.length);
            return UTF8String.concatWs(UTF8String.fromString(","), texts);
        }
    }

    static final class MapStep extends MergedStep {
        private final MessageStep entry;

        MapStep(MessageStep entry) {
            this.entry = entry;
        }

        static Object map(LinkedHashMap pairs) {
            return new ArrayBasedMapData(
                new GenericArrayData(pairs.keySet().toArray()), new GenericArrayData(pairs.values().toArray())
            );
        }

        Object begin() {
            return new LinkedHashMap();
        }

        void add(Body body, Object state) {
            Object[] pair = (Object[]) entry.begin();
            entry.add(body, pair);
            entry.finish(pair);
            ((LinkedHashMap) state).put(pair[0], pair[1]);
        }

        Object finish(Object state) {
            return map((LinkedHashMap) state);
        }
    }

    /** The JSON text of a Struct, a Value or a ListValue. formats/protobuf/json_tree.py is the same in Python. */
    static final class JsonStep extends MergedStep {
        private final boolean isStruct;
        private final boolean isList;

        JsonStep(String of) {
            isStruct = of.equals("struct");
            isList = of.equals("list");
        }

        Object begin() {
            return isStruct ? (Object) new LinkedHashMap() : isList ? (Object) new ArrayList() : new Object[1];
        }

        void add(Body body, Object state) {
            JsonTree.add(body, state, 0);
        }

        Object finish(Object state) {
            ByteArrayOutputStream text = new ByteArrayOutputStream();
            JsonText.write(state, text);
            return UTF8String.fromBytes(text.toByteArray());
        }
    }

    /** Reads JSON: objects are LinkedHashMaps, arrays ArrayLists, and any value is in an array of one. */
    static final class JsonTree {
        static void add(Body body, Object state, int depth) {
            if (state instanceof LinkedHashMap) {
                object(body, (LinkedHashMap) state, depth);
            } else if (state instanceof ArrayList) {
                array(body, (ArrayList) state, depth);
            } else {
                value(body, (Object[]) state, depth);
            }
        }

        private static void inner(Body body, Object state, int depth) {
            int outer = body.enter();
            add(body, state, depth);
            body.end = outer;
        }

        private static void check(boolean isGood) {
            if (!isGood) {
                throw Dead.IT;
            }
        }

        private static void object(Body body, LinkedHashMap state, int depth) {
            check(depth <= DEEPEST_JSON);
            while (body.at < body.end) {
                long tag = body.tag();
                if (tag >>> 3 != 1) {
                    body.skip(tag >>> 3, (int) (tag & 7));
                    continue;
                }
                check((tag & 7) == LENGTH);
                int outer = body.enter();
                entry(body, state, depth);
                body.end = outer;
            }
        }

        private static void entry(Body body, LinkedHashMap state, int depth) {
            UTF8String key = UTF8String.EMPTY_UTF8;
            Object[] value = new Object[1];
            while (body.at < body.end) {
                long tag = body.tag();
                long number = tag >>> 3;
                if (number != 1 && number != 2) {
                    body.skip(number, (int) (tag & 7));
                    continue;
                }
                check((tag & 7) == LENGTH);
                if (number == 1) {
                    key = body.text();
                } else {
                    inner(body, value, depth);
                }
            }
            state.put(key, value);
        }

        private static void array(Body body, ArrayList state, int depth) {
            check(depth <= DEEPEST_JSON);
            while (body.at < body.end) {
                long tag = body.tag();
                if (tag >>> 3 != 1) {
                    body.skip(tag >>> 3, (int) (tag & 7));
                    continue;
                }
                check((tag & 7) == LENGTH);
                Object[] value = new Object[1];
                inner(body, value, depth);
                state.add(value);
            }
        }

        private static void value(Body body, Object[] state, int depth) {
            while (body.at < body.end) {
                long tag = body.tag();
                long number = tag >>> 3;
                int wire = (int) (tag & 7);
                if (number > 6) {
                    body.skip(number, wire);
                    continue;
                }
                check(wire == (number == 1 || number == 4 ? VARINT : number == 2 ? FIXED64 : LENGTH));
                if (number == 1) {
                    body.varint();
                    state[0] = null;
                } else if (number == 2) {
                    state[0] = Double.valueOf(Double.longBitsToDouble(body.fixed(8)));
                } else if (number == 3) {
                    state[0] = body.text();
                } else if (number == 4) {
                    state[0] = Boolean.valueOf(body.varint() != 0);
                } else {
                    if (number == 5 ? !(state[0] instanceof LinkedHashMap) : !(state[0] instanceof ArrayList)) {
                        state[0] = number == 5 ? (Object) new LinkedHashMap() : new ArrayList();
                    }
                    inner(body, state[0], depth + 1);
                }
            }
        }
    }

    /** Writes JSON without white space, and numbers as RFC 8785 specifies. */
    static final class JsonText {
        private static final int MOST_DIGITS = 21;
        private static final int LEAST_EXPONENT = -7;
        private static final int ALL_DIGITS = 17;

        static void write(Object value, ByteArrayOutputStream text) {
            if (value instanceof Object[]) {
                write(((Object[]) value)[0], text);
            } else if (value instanceof LinkedHashMap) {
                text.write('{');
                Iterator pairs = ((LinkedHashMap) value).entrySet().iterator();
                while (pairs.hasNext()) {
                    Map.Entry one = (Map.Entry) pairs.next();
                    quoted(((UTF8String) one.getKey()).getBytes(), text);
                    text.write(':');
                    write(one.getValue(), text);
                    if (pairs.hasNext()) {
                        text.write(',');
                    }
                }
                text.write('}');
            } else if (value instanceof ArrayList) {
                text.write('[');
                ArrayList items = (ArrayList) value;
                for (int n = 0; n < items.size(); n++) {
                    if (n > 0) {
                        text.write(',');
                    }
                    write(items.get(n), text);
                }
                text.write(']');
            } else if (value instanceof UTF8String) {
                quoted(((UTF8String) value).getBytes(), text);
            } else {
                plain(value instanceof Double ? number(((Double) value).doubleValue()) : String.valueOf(value), text);
            }
        }

        private static void plain(String signs, ByteArrayOutputStream text) {
            for (int n = 0; n < signs.length(); n++) {
                text.write(signs.charAt(n));
            }
        }

        private static void quoted(byte[] bytes, ByteArrayOutputStream text) {
            text.write('"');
            for (int n = 0; n < bytes.length; n++) {
                int sign = bytes[n] & 255;
                int named = "\b\t\n\f\r\"\\".indexOf(sign);
                if (named >= 0) {
                    text.write('\\');
                    text.write("btnfr\"\\".charAt(named));
                } else if (sign < 32) {
                    plain((sign < 16 ? "\\u000" : "\\u00") + Integer.toHexString(sign), text);
                } else {
                    text.write(sign);
                }
            }
            text.write('"');
        }

        static String number(double number) {
            if (Double.isNaN(number) || Double.isInfinite(number)) {
                throw Dead.IT;
            }
            if (number == 0) {
                return "0";
            }
            BigDecimal found = shortest(Math.abs(number)).stripTrailingZeros();
            String digits = found.unscaledValue().toString();
            return (number < 0 ? "-" : "") + placed(digits, digits.length() - found.scale());
        }

        /** The decimal with the fewest digits that is read as this number; of several, the nearest. */
        private static BigDecimal shortest(double number) {
            BigDecimal exact = new BigDecimal(number);
            for (int digits = 1; digits < ALL_DIGITS; digits++) {
                BigDecimal below = exact.round(new MathContext(digits, RoundingMode.DOWN));
                BigDecimal above = exact.round(new MathContext(digits, RoundingMode.UP));
                boolean fitsBelow = below.doubleValue() == number;
                boolean fitsAbove = above.doubleValue() == number;
                if (fitsBelow && fitsAbove) {
                    return exact.round(new MathContext(digits, RoundingMode.HALF_EVEN));
                }
                if (fitsBelow || fitsAbove) {
                    return fitsBelow ? below : above;
                }
            }
            return exact.round(new MathContext(ALL_DIGITS, RoundingMode.HALF_EVEN));
        }

        private static String placed(String digits, int point) {
            if (digits.length() <= point && point <= MOST_DIGITS) {
                return digits + zeros(point - digits.length());
            }
            if (0 < point && point <= MOST_DIGITS) {
                return digits.substring(0, point) + "." + digits.substring(point);
            }
            if (LEAST_EXPONENT < point - 1 && point - 1 < 0) {
                return "0." + zeros(-point) + digits;
            }
            String fraction = digits.length() > 1 ? "." + digits.substring(1) : "";
            return digits.substring(0, 1) + fraction + "e" + (point > 1 ? "+" : "") + (point - 1);
        }

        private static String zeros(int count) {
            StringBuilder found = new StringBuilder();
            for (int n = 0; n < count; n++) {
                found.append('0');
            }
            return found.toString();
        }
    }
}
