package tallymark;

import java.io.ByteArrayOutputStream;
import java.io.Serializable;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Decodes JSON values by a schema, as docs/reference/json.md specifies. formats/fields.py is the same in Python.
 *
 * Janino compiles this file when a pipeline starts: no lambdas, no generic types.
 */
public final class JsonDecoder implements Decoder, Serializable {
    static final int DEEPEST = 200;
    static final int LONGEST_NUMBER = 1000;

    private final Struct type;
    private final Names unnamed;

    /** The second argument collects fields that the schema does not name; null to ignore them. */
    public JsonDecoder(String schema, Names unnamed) {
        type = new Struct((StructType) DataType.fromJson(schema), "");
        this.unnamed = unnamed;
    }

    /** The fields of an object; null if the value does not fit. */
    public Object decode(byte[] value, int start) {
        try {
            Parser parser = new Parser(value, start, unnamed);
            parser.space();
            Object found = type.read(parser);
            parser.space();
            return parser.at == value.length ? found : null;
        } catch (Unfit error) {
            return null;
        } catch (ArrayIndexOutOfBoundsException error) {
            // The value ends too early. Checking for the end at every byte would cost more.
            return null;
        }
    }

    /** Ends the decoding of a value that is not JSON or does not fit. */
    static final class Unfit extends RuntimeException {
        static final Unfit IT = new Unfit();

        private Unfit() {
            super(null, null, false, false);
        }
    }

    /** A position in a value. Every method reads the element in its name and moves past it. */
    static final class Parser {
        final byte[] bytes;
        int at;
        /** Collects fields that the schema does not name, if it is not null. */
        final Names unnamed;
        private int depth = 0;

        Parser(byte[] bytes, int start) {
            this(bytes, start, null);
        }

        Parser(byte[] bytes, int start, Names unnamed) {
            this.bytes = bytes;
            this.at = start;
            this.unnamed = unnamed;
        }

        void space() {
            while (at < bytes.length) {
                byte next = bytes[at];
                if (next != ' ' && next != '\n' && next != '\r' && next != '\t') {
                    return;
                }
                at++;
            }
        }

        /** The next byte that is not white space. */
        byte peek() {
            byte next = bytes[at];
            if (next > ' ') {
                return next;
            }
            space();
            return bytes[at];
        }

        void take(char expected) {
            if (peek() != expected) {
                throw Unfit.IT;
            }
            at++;
        }

        boolean skip(char optional) {
            if (peek() != optional) {
                return false;
            }
            at++;
            return true;
        }

        void word(String expected) {
            for (int n = 0; n < expected.length(); n++) {
                if (bytes[at + n] != expected.charAt(n)) {
                    throw Unfit.IT;
                }
            }
            at += expected.length();
        }

        boolean isNull() {
            if (peek() != 'n') {
                return false;
            }
            word("null");
            return true;
        }

        void open(char bracket) {
            take(bracket);
            if (++depth > DEEPEST) {
                throw Unfit.IT;
            }
        }

        /** Whether the bracket closes, or another element follows. */
        boolean closes(char bracket, boolean first) {
            if (skip(bracket)) {
                depth--;
                return true;
            }
            if (!first) {
                take(',');
            }
            return false;
        }

        /** The content of a string, without escapes. */
        byte[] string() {
            take('"');
            int start = at;
            int end = plain(start);
            at = end + 1;
            return bytes[end] == '"' ? Arrays.copyOfRange(bytes, start, end) : escaped(start, end);
        }

        void skipString() {
            take('"');
            while (true) {
                int end = plain(at);
                at = end + 1;
                if (bytes[end] == '"') {
                    return;
                }
                escape();
            }
        }

        /** The next quote or backslash. All before it must be UTF-8 without control characters. */
        private int plain(int from) {
            int n = from;
            while (true) {
                byte next = bytes[n];
                if (next == '"' || next == '\\') {
                    return n;
                }
                if (next >= ' ') {
                    n++;
                } else if (next < 0) {
                    n += sequence(n);
                } else {
                    throw Unfit.IT;
                }
            }
        }

        /** The length of a character in UTF-8 that is not ASCII. */
        private int sequence(int n) {
            int first = bytes[n] & 0xff;
            int second = bytes[n + 1] & 0xff;
            int length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
            int least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
            int most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
            if (first < 0xc2 || first > 0xf4 || second < least || second > most) {
                throw Unfit.IT;
            }
            for (int more = 2; more < length; more++) {
                if ((bytes[n + more] & 0xc0) != 0x80) {
                    throw Unfit.IT;
                }
            }
            return length;
        }

        private byte[] escaped(int start, int backslash) {
            ByteArrayOutputStream text = new ByteArrayOutputStream(backslash - start + 32);
            text.write(bytes, start, backslash - start);
            while (true) {
                encode(escape(), text);
                int end = plain(at);
                text.write(bytes, at, end - at);
                at = end + 1;
                if (bytes[end] == '"') {
                    return text.toByteArray();
                }
            }
        }

        /** The character of an escape, after its backslash; U+FFFD for half of a surrogate pair. */
        private int escape() {
            byte kind = bytes[at++];
            switch (kind) {
                case '"':
                case '\\':
                case '/':
                    return kind;
                case 'b':
                    return '\b';
                case 'f':
                    return '\f';
                case 'n':
                    return '\n';
                case 'r':
                    return '\r';
                case 't':
                    return '\t';
                case 'u':
                    break;
                default:
                    throw Unfit.IT;
            }
            int unit = hexadecimal();
            if (unit < 0xd800 || unit > 0xdfff) {
                return unit;
            }
            if (unit < 0xdc00 && bytes[at] == '\\' && bytes[at + 1] == 'u') {
                int before = at;
                at += 2;
                int low = hexadecimal();
                if (low >= 0xdc00 && low <= 0xdfff) {
                    return 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                }
                at = before;
            }
            return 0xfffd;
        }

        private int hexadecimal() {
            int unit = 0;
            for (int n = 0; n < 4; n++) {
                byte next = bytes[at++];
                int digit = next < 0 ? -1 : Character.digit((char) next, 16);
                if (digit < 0) {
                    throw Unfit.IT;
                }
                unit = unit * 16 + digit;
            }
            return unit;
        }

        /** Moves past a number. True if it is whole: without fraction and exponent. */
        boolean number() {
            peek();
            int start = at;
            int signs = 0;
            boolean whole = true;
            if (bytes[at] == '-') {
                at++;
                signs++;
            }
            if (bytes[at] == '0') {
                at++;
            } else {
                digits();
            }
            if (at < bytes.length && bytes[at] == '.') {
                whole = false;
                at++;
                signs++;
                digits();
            }
            if (at < bytes.length && (bytes[at] == 'e' || bytes[at] == 'E')) {
                whole = false;
                at++;
                signs++;
                if (bytes[at] == '+' || bytes[at] == '-') {
                    at++;
                    signs++;
                }
                digits();
            }
            if (at - start - signs > LONGEST_NUMBER) {
                throw Unfit.IT;
            }
            return whole;
        }

        private void digits() {
            int start = at;
            while (at < bytes.length && bytes[at] >= '0' && bytes[at] <= '9') {
                at++;
            }
            if (at == start) {
                throw Unfit.IT;
            }
        }

        String text(int start) {
            return new String(bytes, start, at - start, StandardCharsets.ISO_8859_1);
        }

        /** Moves past any value. */
        void any() {
            switch (peek()) {
                case '"':
                    skipString();
                    return;
                case '{':
                    open('{');
                    for (boolean first = true; !closes('}', first); first = false) {
                        peek();
                        skipString();
                        take(':');
                        any();
                    }
                    return;
                case '[':
                    open('[');
                    for (boolean first = true; !closes(']', first); first = false) {
                        any();
                    }
                    return;
                case 't':
                    word("true");
                    return;
                case 'f':
                    word("false");
                    return;
                case 'n':
                    word("null");
                    return;
                default:
                    number();
            }
        }

        /** Writes any value without white space and with the shortest escapes. */
        void compact(ByteArrayOutputStream text) {
            byte next = peek();
            if (next == '"') {
                quote(string(), text);
            } else if (next == '{') {
                open('{');
                text.write('{');
                for (boolean first = true; !closes('}', first); first = false) {
                    if (!first) {
                        text.write(',');
                    }
                    quote(string(), text);
                    take(':');
                    text.write(':');
                    compact(text);
                }
                text.write('}');
            } else if (next == '[') {
                open('[');
                text.write('[');
                for (boolean first = true; !closes(']', first); first = false) {
                    if (!first) {
                        text.write(',');
                    }
                    compact(text);
                }
                text.write(']');
            } else {
                int start = at;
                any();
                text.write(bytes, start, at - start);
            }
        }
    }

    static void encode(int character, ByteArrayOutputStream text) {
        if (character < 0x80) {
            text.write(character);
        } else {
            byte[] encoded = new String(Character.toChars(character)).getBytes(StandardCharsets.UTF_8);
            text.write(encoded, 0, encoded.length);
        }
    }

    static void quote(byte[] content, ByteArrayOutputStream text) {
        text.write('"');
        for (int n = 0; n < content.length; n++) {
            byte next = content[n];
            int at = "\"\\\b\f\n\r\t".indexOf(next);
            if (at >= 0) {
                text.write('\\');
                text.write("\"\\bfnrt".charAt(at));
            } else if (next >= 0 && next < ' ') {
                byte[] escape = ("\\u00" + (next < 16 ? "0" : "") + Integer.toHexString(next)).getBytes();
                text.write(escape, 0, escape.length);
            } else {
                text.write(next);
            }
        }
        text.write('"');
    }

    /** Reads the values of one type. */
    abstract static class Type implements Serializable {
        /** The value that Spark stores. JSON null was handled by the caller. */
        abstract Object read(Parser parser);

        Object readOrNull(Parser parser) {
            return parser.isNull() ? null : read(parser);
        }
    }

    static Type of(DataType type) {
        return of(type, null);
    }

    /** The path begins the names of fields in it; null if unnamed fields in it are ignored. */
    static Type of(DataType type, String path) {
        if (type instanceof StructType) {
            return new Struct((StructType) type, path);
        }
        if (type instanceof ArrayType) {
            return new Array(of(((ArrayType) type).elementType(), path));
        }
        if (type instanceof MapType) {
            return new Map(of(((MapType) type).valueType(), path));
        }
        if (type instanceof DecimalType) {
            return new Exact(((DecimalType) type).precision(), ((DecimalType) type).scale());
        }
        return new Scalar(type.typeName());
    }

    static final class Struct extends Type {
        private final byte[][] names;
        private final Type[] types;
        private final HashMap places = new HashMap();
        private final String path;

        Struct(StructType type, String path) {
            this(type, all(type.fields(), path), path);
        }

        /** Fields that are read by these types. */
        Struct(StructType type, Type[] types, String path) {
            StructField[] fields = type.fields();
            this.types = types;
            this.path = path;
            names = new byte[fields.length][];
            for (int n = 0; n < fields.length; n++) {
                names[n] = fields[n].name().getBytes(StandardCharsets.UTF_8);
                places.put(fields[n].name(), Integer.valueOf(n));
            }
        }

        private static Type[] all(StructField[] fields, String path) {
            Type[] types = new Type[fields.length];
            for (int n = 0; n < fields.length; n++) {
                types[n] = of(fields[n].dataType(), path == null ? null : path + fields[n].name() + ".");
            }
            return types;
        }

        Object read(Parser parser) {
            Object[] values = new Object[names.length];
            int expected = 0;
            parser.open('{');
            for (boolean first = true; !parser.closes('}', first); first = false) {
                parser.peek();
                int before = parser.at;
                int place = place(parser, expected);
                parser.take(':');
                if (place < 0) {
                    if (parser.unnamed != null && path != null && parser.peek() != 'n') {
                        parser.unnamed.add(path + name(parser.bytes, before));
                    }
                    parser.any();
                } else {
                    values[place] = types[place].readOrNull(parser);
                    expected = place + 1;
                }
            }
            return new GenericInternalRow(values);
        }

        /** The field of the next name; -1 if there is none. Fields usually come in the order of the schema. */
        private int place(Parser parser, int expected) {
            if (expected < names.length && isNext(parser, names[expected])) {
                parser.at += names[expected].length + 2;
                return expected;
            }
            Object place = places.get(new String(parser.string(), StandardCharsets.UTF_8));
            return place == null ? -1 : ((Integer) place).intValue();
        }

        private static String name(byte[] bytes, int start) {
            return new String(new Parser(bytes, start).string(), StandardCharsets.UTF_8);
        }

        private static boolean isNext(Parser parser, byte[] name) {
            byte[] bytes = parser.bytes;
            int start = parser.at + 1;
            int end = start + name.length;
            return end < bytes.length
                && bytes[start - 1] == '"'
                && bytes[end] == '"'
                && Arrays.equals(bytes, start, end, name, 0, name.length);
        }
    }

    static final class Array extends Type {
        private final Type element;

        Array(Type element) {
            this.element = element;
        }

        Object read(Parser parser) {
            ArrayList values = new ArrayList();
            parser.open('[');
            for (boolean first = true; !parser.closes(']', first); first = false) {
                values.add(element.readOrNull(parser));
            }
            return new GenericArrayData(values.toArray());
        }
    }

    static final class Map extends Type {
        private final Type value;

        Map(Type value) {
            this.value = value;
        }

        Object read(Parser parser) {
            LinkedHashMap pairs = new LinkedHashMap();
            parser.open('{');
            for (boolean first = true; !parser.closes('}', first); first = false) {
                UTF8String name = UTF8String.fromBytes(parser.string());
                parser.take(':');
                pairs.put(name, value.readOrNull(parser));
            }
            return new ArrayBasedMapData(
                new GenericArrayData(pairs.keySet().toArray()), new GenericArrayData(pairs.values().toArray())
            );
        }
    }

    /** A DECIMAL. */
    static final class Exact extends Type {
        private static final int MOST_EXPONENT_DIGITS = 3;
        /** Characters of a number whose digits a long holds. */
        private static final int MOST_FAST = 18;
        private final int precision;
        private final int scale;
        private final long most;

        Exact(int precision, int scale) {
            this.precision = precision;
            this.scale = scale;
            long limit = 1;
            for (int n = 0; n < Math.min(precision, 18); n++) {
                limit *= 10;
            }
            most = limit - 1;
        }

        Object read(Parser parser) {
            String text;
            if (parser.peek() == '"') {
                byte[] content = parser.string();
                text = new String(content, StandardCharsets.UTF_8);
                if (text.length() > LONGEST_NUMBER) {
                    throw Unfit.IT;
                }
            } else {
                int start = parser.at;
                parser.number();
                if (parser.at - start <= MOST_FAST) {
                    Decimal found = fast(parser.bytes, start, parser.at);
                    if (found != null) {
                        return found;
                    }
                }
                text = parser.text(start);
            }
            check(text);
            BigDecimal number = new BigDecimal(text).setScale(scale, RoundingMode.HALF_UP);
            if (number.precision() > precision) {
                throw Unfit.IT;
            }
            return Decimal.apply(new scala.math.BigDecimal(number), precision, scale);
        }

        /** A short number without an exponent and with no more digits after the point than the scale; else null. */
        private Decimal fast(byte[] bytes, int start, int end) {
            boolean negative = bytes[start] == '-';
            long digits = 0;
            int fraction = -1;
            for (int n = negative ? start + 1 : start; n < end; n++) {
                byte next = bytes[n];
                if (next >= '0' && next <= '9') {
                    digits = digits * 10 + (next - '0');
                    fraction = fraction < 0 ? fraction : fraction + 1;
                } else if (next == '.') {
                    fraction = 0;
                } else {
                    return null;
                }
            }
            for (int n = Math.max(fraction, 0); n < scale; n++) {
                if (digits > Long.MAX_VALUE / 10) {
                    return null;
                }
                digits *= 10;
            }
            if (fraction > scale || digits > most) {
                return null;
            }
            return Decimal.createUnsafe(negative ? -digits : digits, precision, scale);
        }

        /** Refuses what Java accepts beyond docs/reference/json.md: long exponents and digits of other scripts. */
        private static void check(String text) {
            int n = 0;
            int digits = 0;
            if (n < text.length() && (text.charAt(n) == '+' || text.charAt(n) == '-')) {
                n++;
            }
            for (boolean point = false; n < text.length(); n++) {
                char next = text.charAt(n);
                if (next == '.' && !point) {
                    point = true;
                } else if (next >= '0' && next <= '9') {
                    digits++;
                } else {
                    break;
                }
            }
            if (digits == 0) {
                throw Unfit.IT;
            }
            if (n == text.length()) {
                return;
            }
            if (text.charAt(n) != 'e' && text.charAt(n) != 'E') {
                throw Unfit.IT;
            }
            n++;
            if (n < text.length() && (text.charAt(n) == '+' || text.charAt(n) == '-')) {
                n++;
            }
            int first = n;
            int significant = 0;
            for (; n < text.length(); n++) {
                char next = text.charAt(n);
                if (next < '0' || next > '9') {
                    throw Unfit.IT;
                }
                if (significant > 0 || next != '0') {
                    significant++;
                }
            }
            if (n == first || significant > MOST_EXPONENT_DIGITS) {
                throw Unfit.IT;
            }
        }
    }

    /** A type without parameters, by Spark's name of it. */
    static final class Scalar extends Type {
        private static final String[] KINDS = {
            "byte", "short", "integer", "long", "float", "double", "string", "boolean", "binary", "date", "timestamp",
            "timestamp_ntz",
        };
        private final int kind;

        Scalar(String name) {
            kind = Arrays.asList(KINDS).indexOf(name);
            if (kind < 0) {
                throw new IllegalArgumentException(name);
            }
        }

        Object read(Parser parser) {
            switch (kind) {
                case 0:
                    return Byte.valueOf((byte) whole(parser, Byte.MAX_VALUE));
                case 1:
                    return Short.valueOf((short) whole(parser, Short.MAX_VALUE));
                case 2:
                    return Integer.valueOf((int) whole(parser, Integer.MAX_VALUE));
                case 3:
                    return Long.valueOf(whole(parser, Long.MAX_VALUE));
                case 4:
                    return single(parser);
                case 5:
                    return real(parser);
                case 6:
                    return string(parser);
                case 7:
                    return flag(parser);
                case 8:
                    return binary(parser);
                case 9:
                    return Integer.valueOf((int) (Time.of(parser, Time.DATE) / Time.DAY));
                case 10:
                    return Long.valueOf(Time.of(parser, Time.MOMENT));
                default:
                    return Long.valueOf(Time.of(parser, Time.CLOCK));
            }
        }

        static long whole(Parser parser, long most) {
            parser.peek();
            int start = parser.at;
            if (!parser.number()) {
                throw Unfit.IT;
            }
            boolean negative = parser.bytes[start] == '-';
            if (parser.at - start > 20) {
                throw Unfit.IT;
            }
            // Negative numbers have the larger range.
            long least = negative ? -most - 1 : -most;
            long number = 0;
            for (int n = negative ? start + 1 : start; n < parser.at; n++) {
                int digit = parser.bytes[n] - '0';
                if (number < (least + digit) / 10) {
                    throw Unfit.IT;
                }
                number = number * 10 - digit;
            }
            return negative ? number : -number;
        }

        private static final double[] POWERS = {
            1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
            1e19, 1e20, 1e21, 1e22,
        };

        private static Double real(Parser parser) {
            parser.peek();
            int start = parser.at;
            parser.number();
            if (parser.at - start <= 16) {
                // At most 15 digits and a small power of ten are exact, so one division rounds correctly.
                boolean negative = parser.bytes[start] == '-';
                long digits = 0;
                int fraction = -1;
                boolean plain = true;
                for (int n = negative ? start + 1 : start; n < parser.at && plain; n++) {
                    byte next = parser.bytes[n];
                    if (next == '.') {
                        fraction = 0;
                    } else if (next >= '0' && next <= '9') {
                        digits = digits * 10 + (next - '0');
                        fraction = fraction < 0 ? fraction : fraction + 1;
                    } else {
                        plain = false;
                    }
                }
                if (plain && digits < 1L << 53) {
                    double found = fraction > 0 ? digits / POWERS[fraction] : (double) digits;
                    return Double.valueOf(negative ? -found : found);
                }
            }
            Double found = Double.valueOf(parser.text(start));
            if (found.isInfinite()) {
                throw Unfit.IT;
            }
            return found;
        }

        private static Float single(Parser parser) {
            parser.peek();
            int start = parser.at;
            parser.number();
            Float found = Float.valueOf(parser.text(start));
            if (found.isInfinite()) {
                throw Unfit.IT;
            }
            return found;
        }

        private static UTF8String string(Parser parser) {
            if (parser.peek() == '"') {
                return UTF8String.fromBytes(parser.string());
            }
            ByteArrayOutputStream text = new ByteArrayOutputStream();
            parser.compact(text);
            return UTF8String.fromBytes(text.toByteArray());
        }

        private static Boolean flag(Parser parser) {
            boolean found = parser.peek() == 't';
            parser.word(found ? "true" : "false");
            return Boolean.valueOf(found);
        }

        static byte[] binary(Parser parser) {
            byte[] text = parser.string();
            if (text.length % 4 != 0) {
                throw Unfit.IT;
            }
            try {
                return Base64.getDecoder().decode(text);
            } catch (IllegalArgumentException error) {
                throw Unfit.IT;
            }
        }
    }

    /** Dates and times, in microseconds since 1970. Janino reads only public constants of other files. */
    public static final class Time {
        public static final int DATE = 0;
        public static final int CLOCK = 1;
        public static final int MOMENT = 2;
        static final long SECOND = 1000000L;
        static final long MINUTE = 60 * SECOND;
        static final long HOUR = 60 * MINUTE;
        public static final long DAY = 24 * HOUR;
        public static final long FIRST = -719162 * DAY;
        public static final long LAST = 2932897 * DAY;

        private final byte[] text;
        private int at = 0;

        private Time(byte[] text) {
            this.text = text;
        }

        static long of(Parser parser, int form) {
            return of(parser.string(), form);
        }

        static long of(byte[] text, int form) {
            Time time = new Time(text);
            long found = time.day();
            if (form != DATE && time.at < time.text.length) {
                found += time.clock(form == MOMENT);
            }
            if (time.at != time.text.length || found < FIRST || found >= LAST) {
                throw Unfit.IT;
            }
            return found;
        }

        private long day() {
            int year = number(4);
            take('-');
            int month = number(2);
            take('-');
            int day = number(2);
            if (year < 1 || month < 1 || month > 12 || day < 1) {
                throw Unfit.IT;
            }
            if (day > 28 && day > java.time.YearMonth.of(year, month).lengthOfMonth()) {
                throw Unfit.IT;
            }
            // Years from March to February: a leap day is the last one.
            int years = month > 2 ? year : year - 1;
            int months = (month + 9) % 12;
            long days = 365L * years + years / 4 - years / 100 + years / 400 + (153 * months + 2) / 5 + day - 1;
            return (days - 719468) * DAY;
        }

        private long clock(boolean zoned) {
            if (text[at] != ' ') {
                take('T');
            } else {
                at++;
            }
            long found = limited(23) * HOUR;
            take(':');
            found += limited(59) * MINUTE;
            if (at == text.length) {
                return found;
            }
            take(':');
            found += limited(59) * SECOND;
            if (at < text.length && text[at] == '.') {
                at++;
                found += fraction();
            }
            return at < text.length && zoned ? found - zone() : found;
        }

        private long fraction() {
            int start = at;
            long unit = SECOND;
            long found = 0;
            for (; at < text.length && text[at] >= '0' && text[at] <= '9'; at++) {
                unit /= 10;
                found += (text[at] - '0') * unit;
            }
            if (at == start) {
                throw Unfit.IT;
            }
            return found;
        }

        private long zone() {
            if (text[at] == ' ') {
                at++;
            }
            byte sign = text[at++];
            if (sign == 'Z') {
                return 0;
            }
            if (sign == 'U') {
                take('T');
                take('C');
                return 0;
            }
            if (sign != '+' && sign != '-') {
                throw Unfit.IT;
            }
            long found = number(2) * HOUR;
            if (at < text.length) {
                if (text[at] == ':') {
                    at++;
                }
                found += limited(59) * MINUTE;
            }
            if (found > 18 * HOUR) {
                throw Unfit.IT;
            }
            return sign == '-' ? -found : found;
        }

        private void take(char expected) {
            if (text[at++] != expected) {
                throw Unfit.IT;
            }
        }

        private int limited(int most) {
            int found = number(2);
            if (found > most) {
                throw Unfit.IT;
            }
            return found;
        }

        private int number(int digits) {
            int found = 0;
            for (int n = 0; n < digits; n++) {
                byte next = text[at++];
                if (next < '0' || next > '9') {
                    throw Unfit.IT;
                }
                found = found * 10 + (next - '0');
            }
            return found;
        }
    }
}
