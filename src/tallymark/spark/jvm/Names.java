package tallymark;

import java.io.Serializable;
import java.util.HashSet;
import java.util.Iterator;

/** The fields of one record that the schema does not name. formats/unnamed.py finds the same in Python. */
public final class Names implements Serializable {
    public static final String OTHERS = "...";
    private static final int LONGEST = 200;

    private final String prefix;
    private HashSet found = new HashSet();

    /** The prefix tells the fields of keys from those of values. */
    public Names(String prefix) {
        this.prefix = prefix;
    }

    void add(String path) {
        found.add(shortened((prefix + path).replace("\0", "\\0")));
    }

    private static String shortened(String name) {
        if (name.codePointCount(0, name.length()) <= LONGEST) {
            return name;
        }
        return name.substring(0, name.offsetByCodePoints(0, LONGEST)) + OTHERS;
    }

    boolean isEmpty() {
        return found.isEmpty();
    }

    Iterator iterator() {
        return found.iterator();
    }

    /** Prepares for the next record. */
    void clear() {
        if (!found.isEmpty()) {
            // Emptying a large set would take as long for every later record.
            found = new HashSet();
        }
    }
}
