package tallymark;

import java.io.Serializable;
import java.util.ArrayList;

/** Decodes what was written with a schema that has fields which the reader's schema does not name. */
public final class NamingDecoder implements Decoder, Serializable {
    private final Decoder decoder;
    private final Names names;
    private final ArrayList paths = new ArrayList();

    public NamingDecoder(Decoder decoder, Names names) {
        this.decoder = decoder;
        this.names = names;
    }

    public void add(String path) {
        paths.add(path);
    }

    public Object decode(byte[] value, int start) {
        Object found = decoder.decode(value, start);
        for (int n = 0; found != null && n < paths.size(); n++) {
            names.add((String) paths.get(n));
        }
        return found;
    }
}
