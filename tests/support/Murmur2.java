import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

/** Reads keys in hex, one a line, and writes for each: its hash, and its partition of 1, 7, 12 and 100. */
public class Murmur2 {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            byte[] key = HexFormat.of().parseHex(line.strip());
            StringBuilder found = new StringBuilder().append(Utils.murmur2(key));
            for (int partitions : new int[] {1, 7, 12, 100}) {
                found.append(' ').append(BuiltInPartitioner.partitionForKey(key, partitions));
            }
            System.out.println(found);
        }
    }
}
