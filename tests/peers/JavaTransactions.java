import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What an application does with transactions of kafka-clients: bootstrap servers, a prefix for
 * names, and the milliseconds after which a transaction is late. It does what `transact` in
 * tests/support/transactional_steps.py does, and tells the outcome as JSON.
 */
public class JavaTransactions {
    private static final int PARTITIONS = 2;
    private static final int SOURCE_RECORDS = 6;
    private static final int TOO_LONG_MS = 900_001;

    private final String bootstrap;
    private final String prefix;
    private final Map<String, Object> outcome = new TreeMap<>();

    private JavaTransactions(String bootstrap, String prefix) {
        this.bootstrap = bootstrap;
        this.prefix = prefix;
    }

    public static void main(String[] arguments) throws Exception {
        JavaTransactions client = new JavaTransactions(arguments[0], arguments[1]);
        client.transact(Integer.parseInt(arguments[2]));
        System.out.println(json(client.outcome));
    }

    private void transact(int lateMs) throws Exception {
        KafkaProducer<String, String> late = producer("late", lateMs);
        late.initTransactions();
        late.beginTransaction();
        send(late, "late", Map.of("late", 0));
        outcome.put("open", List.of(end("late", "read_committed"), end("late", "read_uncommitted")));

        endTransactions();
        for (String isolation : List.of("read_committed", "read_uncommitted")) {
            outcome.put(isolation, read("ends", PARTITIONS, isolation, List.of("end 0", "end 1"))
                .stream().sorted().collect(Collectors.toList()));
        }
        copy();
        fence();

        try (KafkaProducer<String, String> plain = producer(null, lateMs)) {
            send(plain, "late", Map.of("after", 0));
        }
        outcome.put("late_read", read("late", 1, "read_committed", List.of("after")));
        outcome.put("late", refusal(late::commitTransaction));
        late.close(Duration.ZERO);
        try (KafkaProducer<String, String> refused = producer("refused", TOO_LONG_MS)) {
            outcome.put("refused", refusal(refused::initTransactions));
        }
    }

    private KafkaProducer<String, String> producer(String name, int timeoutMs) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        if (name != null) {
            settings.put("transactional.id", prefix + "-" + name);
            settings.put("transaction.timeout.ms", timeoutMs);
        }
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private KafkaProducer<String, String> started(String name) {
        KafkaProducer<String, String> producer = producer(name, 60_000);
        producer.initTransactions();
        return producer;
    }

    /** Wait until all are acknowledged. */
    private void send(
            KafkaProducer<String, String> producer, String topic, Map<String, Integer> values) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        values.forEach((value, partition) -> sent.add(
            producer.send(new ProducerRecord<>(prefix + "-" + topic, partition, null, value))));
        producer.flush();
        for (Future<RecordMetadata> one : sent) {
            one.get();
        }
    }

    private KafkaConsumer<String, String> consumer(String isolation, String group) {
        Map<String, Object> settings = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrap, "auto.offset.reset", "earliest",
            "enable.auto.commit", false, "isolation.level", isolation, "fetch.max.wait.ms", 50));
        if (group != null) {
            settings.put("group.id", group);
        }
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private List<TopicPartition> partitions(String topic, int count) {
        List<TopicPartition> all = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            all.add(new TopicPartition(prefix + "-" + topic, number));
        }
        return all;
    }

    // --- commit and abort ---------------------------------------------------------------------

    private void endTransactions() throws Exception {
        try (KafkaProducer<String, String> producer = started("ends")) {
            for (String name : List.of("committed", "aborted", "end")) {
                Map<String, Integer> values = new HashMap<>();
                for (int number = 0; number < (name.equals("end") ? PARTITIONS : 4); number++) {
                    values.put(name + " " + number, number % PARTITIONS);
                }
                producer.beginTransaction();
                send(producer, "ends", values);
                if (name.equals("aborted")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
    }

    /** What is in a topic up to its last values. */
    private List<String> read(String topic, int count, String isolation, List<String> last) throws Exception {
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(isolation, null)) {
            consumer.assign(partitions(topic, count));
            JavaClient.eventually(() -> {
                consumer.poll(JavaClient.STEP).forEach(record -> found.add(record.value()));
                return found.containsAll(last);
            }, last + " is read with " + isolation);
        }
        return found;
    }

    private long end(String topic, String isolation) {
        TopicPartition part = partitions(topic, 1).get(0);
        try (KafkaConsumer<String, String> consumer = consumer(isolation, null)) {
            return consumer.endOffsets(List.of(part)).get(part);
        }
    }

    // --- consume, transform, produce ----------------------------------------------------------

    private void copy() throws Exception {
        List<TopicPartition> source = partitions("source", PARTITIONS);
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        source.forEach(part -> ends.put(part, new OffsetAndMetadata(SOURCE_RECORDS / PARTITIONS)));
        try (KafkaConsumer<String, String> consumer = consumer("read_committed", prefix + "-group");
                KafkaProducer<String, String> producer = started("copy")) {
            consumer.subscribe(List.of(prefix + "-source"));
            List<ConsumerRecord<String, String>> found = new ArrayList<>();
            JavaClient.eventually(() -> {
                consumer.poll(JavaClient.STEP).forEach(found::add);
                return found.size() == SOURCE_RECORDS;
            }, "the source is read");
            producer.beginTransaction();
            send(producer, "copies", copies(found, "no copy of "));
            producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
            producer.abortTransaction();
            producer.beginTransaction();
            // Acknowledged only after the end of the one before.
            send(producer, "copies", copies(found, "copy of "));
            outcome.put("before", committed(consumer, source));
            producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
            producer.commitTransaction();
            JavaClient.eventually(
                () -> !committed(consumer, source).containsValue(-1L), "offsets are committed");
            outcome.put("after", committed(consumer, source));
        }
    }

    private static Map<String, Integer> copies(List<ConsumerRecord<String, String>> found, String name) {
        return found.stream().collect(
            Collectors.toMap(record -> name + record.value(), ConsumerRecord::partition));
    }

    private static Map<String, Long> committed(
            KafkaConsumer<String, String> consumer, List<TopicPartition> parts) {
        Map<TopicPartition, OffsetAndMetadata> told = consumer.committed(new HashSet<>(parts));
        Map<String, Long> found = new TreeMap<>();
        for (TopicPartition part : parts) {
            OffsetAndMetadata at = told.get(part);
            found.put(String.valueOf(part.partition()), at == null ? -1L : at.offset());
        }
        return found;
    }

    // --- refusals -----------------------------------------------------------------------------

    private void fence() throws Exception {
        KafkaProducer<String, String> zombie = started("fenced");
        zombie.beginTransaction();
        send(zombie, "fenced", Map.of("zombie", 0));
        try (KafkaProducer<String, String> heir = started("fenced")) {
            heir.beginTransaction();
            send(heir, "fenced", Map.of("heir", 0));
            heir.commitTransaction();
        }
        outcome.put("fenced", refusal(zombie::commitTransaction));
        zombie.close(Duration.ZERO);
    }

    /** The class of the error, or its message if the class says nothing. */
    private static String refusal(Runnable call) {
        try {
            call.run();
        } catch (KafkaException failure) {
            if (failure.getClass() != KafkaException.class) {
                return failure.getClass().getSimpleName();
            }
            return (failure.getCause() == null ? failure : failure.getCause()).getMessage();
        }
        return "";
    }

    // --- JSON ---------------------------------------------------------------------------------

    private static String json(Object value) {
        if (value instanceof Map) {
            return ((Map<?, ?>) value).entrySet().stream()
                .map(one -> json(one.getKey()) + ": " + json(one.getValue()))
                .collect(Collectors.joining(", ", "{", "}"));
        }
        if (value instanceof List) {
            return ((List<?>) value).stream().map(JavaTransactions::json)
                .collect(Collectors.joining(", ", "[", "]"));
        }
        return value instanceof String ? '"' + (String) value + '"' : String.valueOf(value);
    }
}
