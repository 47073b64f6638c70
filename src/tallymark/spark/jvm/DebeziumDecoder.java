package tallymark;

import java.io.Serializable;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.RoundingMode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.*;

/**
 * Decodes Debezium's change events in JSON, as docs/howto/debezium.md specifies. formats/debezium/json.py is the same in
 * Python.
 *
 * An event is the value itself, or its member "payload"; then the member "schema" says how columns are encoded.
 */
public final class DebeziumDecoder implements Decoder, Serializable {
    private static final String CONNECT = "org.apache.kafka.connect.data.";
    private static final String DEBEZIUM = "io.debezium.time.";
    private static final int TEXT = -2;
    private static final int BASE64 = -1;

    private final StructType event;
    private final int op;
    private final long perSecond;
    private final int decimals;
    private final Names unnamed;
    private final JsonDecoder.Struct plain;
    private transient byte[] lastSchema;
    private transient JsonDecoder.Struct last;

    /**
     * The type of events in Spark's JSON, the units of a time in a second, and whether decimals are base64. The last
     * argument collects columns of rows that the type does not name; null to ignore them.
     */
    public DebeziumDecoder(String schema, long perSecond, boolean isBase64, Names unnamed) {
        this.unnamed = unnamed;
        this.event = (StructType) DataType.fromJson(schema);
        this.op = event.fieldIndex("op");
        this.perSecond = perSecond;
        this.decimals = isBase64 ? BASE64 : TEXT;
        this.plain = struct(new HashMap());
    }

    /** The fields of an event; null if the value is none. */
    public Object decode(byte[] value, int start) {
        try {
            return event(value, start);
        } catch (JsonDecoder.Unfit error) {
            return null;
        } catch (ArrayIndexOutOfBoundsException error) {
            return null;
        }
    }

    private Object event(byte[] value, int start) {
        int payload = -1;
        int schema = -1;
        int schemaEnd = -1;
        JsonDecoder.Parser parser = new JsonDecoder.Parser(value, start);
        parser.open('{');
        for (boolean first = true; !parser.closes('}', first); first = false) {
            parser.peek();
            String name = new String(parser.string(), StandardCharsets.UTF_8);
            parser.take(':');
            parser.peek();
            int at = parser.at;
            parser.any();
            if (name.equals("payload")) {
                payload = at;
            } else if (name.equals("schema")) {
                schema = at;
                schemaEnd = parser.at;
            }
        }
        parser.space();
        if (parser.at != value.length) {
            throw JsonDecoder.Unfit.IT;
        }
        JsonDecoder.Struct type = payload < 0 || schema < 0 ? plain : struct(value, schema, schemaEnd);
        Object found = type.read(new JsonDecoder.Parser(value, payload < 0 ? start : payload, unnamed));
        if (((InternalRow) found).isNullAt(op)) {
            throw JsonDecoder.Unfit.IT;
        }
        return found;
    }

    /** The type of events of this schema, which usually is that of the event before. */
    private JsonDecoder.Struct struct(byte[] value, int start, int end) {
        if (last == null || !Arrays.equals(lastSchema, 0, lastSchema.length, value, start, end)) {
            Object schema = any(new JsonDecoder.Parser(value, start));
            last = struct(columns(schema));
            lastSchema = Arrays.copyOfRange(value, start, end);
        }
        return last;
    }

    private JsonDecoder.Struct struct(HashMap columns) {
        StructField[] fields = event.fields();
        JsonDecoder.Type[] types = new JsonDecoder.Type[fields.length];
        for (int n = 0; n < fields.length; n++) {
            String name = fields[n].name();
            if (name.equals("before") || name.equals("after")) {
                types[n] = row((StructType) fields[n].dataType(), columns, name + ".");
            } else {
                types[n] = JsonDecoder.of(fields[n].dataType());
            }
        }
        return new JsonDecoder.Struct(event, types, null);
    }

    private JsonDecoder.Struct row(StructType type, HashMap columns, String path) {
        StructField[] fields = type.fields();
        JsonDecoder.Type[] types = new JsonDecoder.Type[fields.length];
        for (int n = 0; n < fields.length; n++) {
            Object column = columns.get(fields[n].name());
            HashMap described = column instanceof HashMap ? (HashMap) column : new HashMap();
            while (described.get("items") instanceof HashMap) {
                described = (HashMap) described.get("items");
            }
            types[n] = column(fields[n].dataType(), units(described), scale(described));
        }
        return new JsonDecoder.Struct(type, types, path);
    }

    private static JsonDecoder.Type column(DataType type, long perSecond, int scale) {
        if (type instanceof ArrayType) {
            return new JsonDecoder.Array(column(((ArrayType) type).elementType(), perSecond, scale));
        }
        if (type instanceof DecimalType) {
            return new Exact((DecimalType) type, scale);
        }
        String name = type.typeName();
        if (name.equals("date")) {
            return new Day();
        }
        if (name.equals("timestamp")) {
            return new Moment(perSecond, JsonDecoder.Time.MOMENT);
        }
        return name.equals("timestamp_ntz") ? new Moment(perSecond, JsonDecoder.Time.CLOCK) : JsonDecoder.of(type);
    }

    private long units(HashMap column) {
        Object name = column.get("name");
        if ((CONNECT + "Timestamp").equals(name) || (DEBEZIUM + "Timestamp").equals(name)) {
            return 1000L;
        }
        if ((DEBEZIUM + "MicroTimestamp").equals(name)) {
            return 1000000L;
        }
        return (DEBEZIUM + "NanoTimestamp").equals(name) ? 1000000000L : perSecond;
    }

    /** The scale of decimals in base64, BASE64 for that of the column, or TEXT. */
    private int scale(HashMap column) {
        if ((CONNECT + "Decimal").equals(column.get("name"))) {
            Object parameters = column.get("parameters");
            Object scale = parameters instanceof HashMap ? ((HashMap) parameters).get("scale") : null;
            return scale instanceof String && ((String) scale).matches("[0-9]{1,3}") ? Integer.parseInt((String) scale) : BASE64;
        }
        return "string".equals(column.get("type")) ? TEXT : decimals;
    }

    /** The columns that a schema describes, by name: those of its field "after". */
    private static HashMap columns(Object schema) {
        return named(named(schema).get("after"));
    }

    private static HashMap named(Object schema) {
        HashMap found = new HashMap();
        Object fields = schema instanceof HashMap ? ((HashMap) schema).get("fields") : null;
        ArrayList listed = fields instanceof ArrayList ? (ArrayList) fields : new ArrayList();
        for (int n = 0; n < listed.size(); n++) {
            if (listed.get(n) instanceof HashMap) {
                found.put(((HashMap) listed.get(n)).get("field"), listed.get(n));
            }
        }
        return found;
    }

    /** Objects, arrays and strings; null for other values. */
    private static Object any(JsonDecoder.Parser parser) {
        byte next = parser.peek();
        if (next == '{') {
            HashMap found = new HashMap();
            parser.open('{');
            for (boolean first = true; !parser.closes('}', first); first = false) {
                parser.peek();
                String name = new String(parser.string(), StandardCharsets.UTF_8);
                parser.take(':');
                found.put(name, any(parser));
            }
            return found;
        }
        if (next == '[') {
            ArrayList found = new ArrayList();
            parser.open('[');
            for (boolean first = true; !parser.closes(']', first); first = false) {
                found.add(any(parser));
            }
            return found;
        }
        if (next == '"') {
            return new String(parser.string(), StandardCharsets.UTF_8);
        }
        parser.any();
        return null;
    }

    /** A date: text, or the days since 1970. */
    static final class Day extends JsonDecoder.Type {
        Object read(JsonDecoder.Parser parser) {
            long day = JsonDecoder.Time.DAY;
            if (parser.peek() == '"') {
                return Integer.valueOf((int) (JsonDecoder.Time.of(parser, JsonDecoder.Time.DATE) / day));
            }
            long days = JsonDecoder.Scalar.whole(parser, Integer.MAX_VALUE);
            if (days < JsonDecoder.Time.FIRST / day || days >= JsonDecoder.Time.LAST / day) {
                throw JsonDecoder.Unfit.IT;
            }
            return Integer.valueOf((int) days);
        }
    }

    /** A timestamp: text, or a number since 1970. */
    static final class Moment extends JsonDecoder.Type {
        private static final long SECOND = 1000000L;
        private final long perSecond;
        private final int form;

        Moment(long perSecond, int form) {
            this.perSecond = perSecond;
            this.form = form;
        }

        Object read(JsonDecoder.Parser parser) {
            if (parser.peek() == '"') {
                return Long.valueOf(JsonDecoder.Time.of(parser, form));
            }
            long number = JsonDecoder.Scalar.whole(parser, Long.MAX_VALUE);
            long least = JsonDecoder.Time.FIRST;
            long most = JsonDecoder.Time.LAST;
            long micros;
            if (perSecond >= SECOND) {
                micros = Math.floorDiv(number, perSecond / SECOND);
            } else {
                long times = SECOND / perSecond;
                if (number < least / times || number >= most / times) {
                    throw JsonDecoder.Unfit.IT;
                }
                micros = number * times;
            }
            if (micros < least || micros >= most) {
                throw JsonDecoder.Unfit.IT;
            }
            return Long.valueOf(micros);
        }
    }

    /** A decimal: a number, text, bytes in base64, or an object with its scale and such bytes. */
    static final class Exact extends JsonDecoder.Type {
        private static final int MOST_BYTES = 64;
        private static final long MOST_SCALE = 999;
        private final int precision;
        private final int target;
        private final int scale;
        private final JsonDecoder.Exact plain;

        Exact(DecimalType type, int scale) {
            this.precision = type.precision();
            this.target = type.scale();
            this.scale = scale;
            this.plain = new JsonDecoder.Exact(precision, target);
        }

        Object read(JsonDecoder.Parser parser) {
            byte next = parser.peek();
            if (next == '{') {
                return variable(parser);
            }
            if (next != '"' || scale == TEXT) {
                return plain.read(parser);
            }
            return decimal(bytes(parser), scale == BASE64 ? target : scale);
        }

        private Decimal variable(JsonDecoder.Parser parser) {
            byte[] bytes = null;
            long own = 0;
            boolean hasScale = false;
            parser.open('{');
            for (boolean first = true; !parser.closes('}', first); first = false) {
                parser.peek();
                String name = new String(parser.string(), StandardCharsets.UTF_8);
                parser.take(':');
                if (name.equals("scale")) {
                    own = JsonDecoder.Scalar.whole(parser, MOST_SCALE);
                    hasScale = true;
                } else if (name.equals("value")) {
                    bytes = bytes(parser);
                } else {
                    parser.any();
                }
            }
            if (bytes == null || !hasScale) {
                throw JsonDecoder.Unfit.IT;
            }
            return decimal(bytes, (int) own);
        }

        private static byte[] bytes(JsonDecoder.Parser parser) {
            byte[] found = JsonDecoder.Scalar.binary(parser);
            if (found.length == 0 || found.length > MOST_BYTES) {
                throw JsonDecoder.Unfit.IT;
            }
            return found;
        }

        private Decimal decimal(byte[] bytes, int from) {
            BigDecimal number = new BigDecimal(new BigInteger(bytes), from).setScale(target, RoundingMode.HALF_UP);
            if (number.precision() > precision) {
                throw JsonDecoder.Unfit.IT;
            }
            return Decimal.apply(new scala.math.BigDecimal(number), precision, target);
        }
    }
}
