import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import kafka.coordinator.transaction.TransactionLog;
import kafka.coordinator.transaction.TransactionLog$;
import kafka.coordinator.transaction.TransactionMetadata;
import kafka.coordinator.transaction.TxnTransitMetadata;
import org.apache.kafka.common.TopicPartition;
import scala.collection.immutable.Set;
import scala.collection.immutable.Set$;

/**
 * Has Kafka write records of __transaction_state, and read them again. Each line of standard input is id, producer id,
 * epoch, timeout, number of the state, partitions (topic:number, commas between), start and last update, separated by
 * spaces. Standard output repeats it with key and value in hexadecimal.
 */
public class TransactionVectors {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            TxnTransitMetadata state = new TxnTransitMetadata(
                Long.parseLong(words[1]), -1, Short.parseShort(words[2]), (short) -1, Integer.parseInt(words[3]),
                TransactionMetadata.byteToState(Byte.parseByte(words[4])), partitions(words[5]),
                Long.parseLong(words[6]), Long.parseLong(words[7]));
            byte[] key = TransactionLog$.MODULE$.keyToBytes(words[0]);
            byte[] value = TransactionLog$.MODULE$.valueToBytes(state);
            TransactionMetadata read = TransactionLog.readTxnRecordValue(words[0], ByteBuffer.wrap(value)).get();
            if (read.state() != state.txnState() || !read.topicPartitions().equals(state.topicPartitions())) {
                throw new IllegalStateException(line + " is read as " + read);
            }
            System.out.println(line + " " + hexadecimal(key) + " " + hexadecimal(value));
        }
    }

    @SuppressWarnings("unchecked")
    private static Set<TopicPartition> partitions(String text) {
        Set<TopicPartition> found = (Set<TopicPartition>) (Set<?>) Set$.MODULE$.empty();
        if (!text.equals("none")) {
            for (String word : text.split(",")) {
                String[] pair = word.split(":");
                found = (Set<TopicPartition>) found.$plus(new TopicPartition(pair[0], Integer.parseInt(pair[1])));
            }
        }
        return found;
    }

    private static String hexadecimal(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte item : bytes) {
            text.append(String.format("%02x", item));
        }
        return text.toString();
    }
}
