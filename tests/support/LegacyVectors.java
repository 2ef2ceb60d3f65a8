import java.nio.ByteBuffer;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;

/**
 * Prints the same three records as a message set of each old format, codec and kind of time: the lines of
 * tests/log/legacy_vectors.txt, made with kafka-clients 2.8.2 and its codecs on the class path.
 */
public class LegacyVectors {
    public static void main(String[] arguments) {
        for (byte magic = 0; magic <= 1; magic++) {
            for (CompressionType codec : CompressionType.values()) {
                for (TimestampType time : TimestampType.values()) {
                    boolean dated = time != TimestampType.NO_TIMESTAMP_TYPE;
                    if (codec != CompressionType.ZSTD && dated == (magic == 1)) {
                        print(magic, codec, time);
                    }
                }
            }
        }
    }

    private static void print(byte magic, CompressionType codec, TimestampType time) {
        MemoryRecordsBuilder set =
            MemoryRecords.builder(ByteBuffer.allocate(1024), magic, codec, time, 40L, 1700000009000L);
        set.appendWithOffset(40, dated(magic, 1), "a".getBytes(), "first".getBytes());
        set.appendWithOffset(41, dated(magic, 3), null, "second ".repeat(6).trim().getBytes());
        set.appendWithOffset(44, dated(magic, 2), "c".getBytes(), (byte[]) null);
        StringBuilder hex = new StringBuilder();
        for (ByteBuffer bytes = set.build().buffer(); bytes.hasRemaining(); ) {
            hex.append(String.format("%02x", bytes.get()));
        }
        System.out.println(magic + " " + codec.name + " " + time + " " + hex);
    }

    private static long dated(byte magic, int number) {
        return magic == 0 ? RecordBatch.NO_TIMESTAMP : 1700000000000L + number;
    }
}
