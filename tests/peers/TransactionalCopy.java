import java.io.IOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Copies the records of one topic to another exactly once, as a member of a group: bootstrap
 * servers, group, source, target, the transactional id, and a seed for what it aborts.
 *
 * Each transaction is a line of output: "committed", "aborted", or what failed. It ends when its
 * input does.
 */
public class TransactionalCopy {
    private static final Duration STEP = Duration.ofMillis(100);

    private final String bootstrap;
    private final String target;
    private final String transactionalId;
    private final Random random;
    private final KafkaConsumer<String, String> consumer;
    private KafkaProducer<String, String> producer;
    private volatile boolean ended;

    private TransactionalCopy(
            String bootstrap, String group, String source, String target, String transactionalId, long seed) {
        this.bootstrap = bootstrap;
        this.target = target;
        this.transactionalId = transactionalId;
        random = new Random(seed);
        consumer = new KafkaConsumer<>(Map.of(
            "bootstrap.servers", bootstrap, "group.id", group, "auto.offset.reset", "earliest",
            "enable.auto.commit", false, "isolation.level", "read_committed", "max.poll.records", 5,
            "heartbeat.interval.ms", 300, "session.timeout.ms", 10_000, "fetch.max.wait.ms", 50),
            new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(source));
    }

    public static void main(String[] arguments) {
        TransactionalCopy copy = new TransactionalCopy(
            arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
            Long.parseLong(arguments[5]));
        Thread waiting = new Thread(copy::awaitEnd);
        waiting.setDaemon(true);
        waiting.start();
        copy.run();
    }

    private void awaitEnd() {
        try {
            while (System.in.read() >= 0) {
                // Nothing is said.
            }
        } catch (IOException failure) {
            System.out.println(failure);
        }
        ended = true;
    }

    private void run() {
        boolean isStarted = false;
        while (!ended) {
            try {
                if (!isStarted) {
                    start();
                    isStarted = true;
                }
                ConsumerRecords<String, String> records = consumer.poll(STEP);
                if (!records.isEmpty()) {
                    System.out.println(copy(records) ? "committed" : "aborted");
                }
            } catch (KafkaException failure) {
                System.out.println(failure);
                isStarted = false;
            }
        }
        consumer.close();
        producer.close(Duration.ZERO);
    }

    /** Whatever the one before left open ends here, and the group's offsets tell how. */
    private void start() {
        if (producer != null) {
            producer.close(Duration.ZERO);
        }
        producer = new KafkaProducer<>(
            Map.of("bootstrap.servers", bootstrap, "transactional.id", transactionalId),
            new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        rewind();
    }

    private void rewind() {
        consumer.committed(consumer.assignment()).forEach((part, committed) -> {
            if (committed == null) {
                consumer.seekToBeginning(List.of(part));
            } else {
                consumer.seek(part, committed);
            }
        });
    }

    private boolean copy(ConsumerRecords<String, String> records) {
        boolean aborts = random.nextInt(4) == 0;
        boolean hasOffsets = !aborts || random.nextBoolean();
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        producer.beginTransaction();
        for (ConsumerRecord<String, String> record : records) {
            producer.send(new ProducerRecord<>(target, record.key(), record.value()));
            TopicPartition part = new TopicPartition(record.topic(), record.partition());
            next.put(part, new OffsetAndMetadata(record.offset() + 1));
        }
        if (hasOffsets) {
            producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
        }
        if (aborts) {
            producer.flush();
            producer.abortTransaction();
            rewind();
        } else {
            producer.commitTransaction();
        }
        return !aborts;
    }
}
