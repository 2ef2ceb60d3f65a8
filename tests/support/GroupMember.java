import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a group with Kafka's Java client, for `tests.support.group_member`: prints each
 * record's value at once until it is killed. Arguments: topic, "sync" or "auto", and the consumer's
 * settings as KEY=VALUE.
 */
public final class GroupMember {
    public static void main(String[] arguments) {
        boolean byHand = arguments[1].equals("sync");
        Map<String, Object> settings = new HashMap<>();
        for (String setting : List.of(arguments).subList(2, arguments.length)) {
            settings.put(setting.split("=", 2)[0], setting.split("=", 2)[1]);
        }
        KafkaConsumer<String, String> consumer =
            new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(arguments[0]), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> given) {
                if (byHand) {
                    commit(consumer);
                }
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> taken) {}
        });
        boolean due = false;
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
            for (ConsumerRecord<String, String> record : records) {
                System.out.println(record.value());
            }
            due |= byHand && !records.isEmpty();
            due = due && !commit(consumer);
        }
    }

    /** Whether there is nothing left to commit; while a round goes on there may be. */
    private static boolean commit(KafkaConsumer<String, String> consumer) {
        try {
            consumer.commitSync();
            return true;
        } catch (RebalanceInProgressException round) {
            return false;
        } catch (CommitFailedException out) {
            return true; // the partitions are others' by now, who will read these records again
        }
    }
}
