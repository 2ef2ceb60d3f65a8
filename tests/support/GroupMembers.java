import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Members of groups with Kafka's Java client, for `tests.support.group_members`: a thread each,
 * prints "GROUP VALUE" of each record at once until it is killed. Arguments: the topic, and for each
 * member auto, sync or async and the consumer's settings: "sync KEY=VALUE KEY=VALUE".
 */
public final class GroupMembers {
    private static volatile boolean leaving;

    public static void main(String[] arguments) {
        List<Thread> members = new ArrayList<>();
        for (String settings : List.of(arguments).subList(1, arguments.length)) {
            members.add(new Thread(() -> live(arguments[0], settings)));
        }
        members.forEach(Thread::start);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            leaving = true;
            for (Thread member : members) {
                try {
                    member.join();
                } catch (InterruptedException end) {
                    return;
                }
            }
        }));
    }

    private static void live(String topic, String given) {
        Map<String, Object> settings = new HashMap<>();
        List<String> words = List.of(given.split(" "));
        for (String setting : words.subList(1, words.size())) {
            settings.put(setting.split("=", 2)[0], setting.split("=", 2)[1]);
        }
        boolean byHand = !words.get(0).equals("auto");
        boolean waits = words.get(0).equals("sync");
        AtomicBoolean refused = new AtomicBoolean();
        KafkaConsumer<String, String> consumer =
            new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
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
        while (!leaving) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
            for (ConsumerRecord<String, String> record : records) {
                System.out.println(settings.get("group.id") + " " + record.value());
            }
            due |= byHand && (refused.getAndSet(false) || !records.isEmpty());
            if (due && waits) {
                due = !commit(consumer);
            } else if (due) {
                consumer.commitAsync((offsets, error) -> refused.compareAndSet(false, error != null));
                due = false;
            }
        }
        consumer.close();
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
