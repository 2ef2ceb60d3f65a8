import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeTopicsResult;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.errors.UnsupportedByAuthenticationException;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What an application does with kafka-clients, against the brokers given: bootstrap servers, how
 * many brokers there are, and a prefix for names. Each scenario that passes is a line of output; the
 * first that fails ends the program. It uses only what kafka-clients 2.8 and 4.1 both have.
 *
 * With "exchange" and properties files, it does what the user of each file does with a topic: see
 * exchange.
 */
@SuppressWarnings({"deprecation", "removal"})
public class JavaClient {
    private static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");
    private static final long BEGAN_MS = 1_700_000_000_000L;
    static final Duration STEP = Duration.ofMillis(100);
    static final long PATIENCE_MS = 120_000;

    private final String bootstrap;
    private final int brokers;
    private final String prefix;
    private final Admin admin;

    private JavaClient(String bootstrap, int brokers, String prefix) {
        this.bootstrap = bootstrap;
        this.brokers = brokers;
        this.prefix = prefix;
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        admin = Admin.create(settings);
    }

    private interface Scenario {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("exchange")) {
            for (String file : List.of(arguments).subList(1, arguments.length)) {
                System.out.println(exchange(Path.of(file)));
            }
            return;
        }
        JavaClient client =
            new JavaClient(arguments[0], Integer.parseInt(arguments[1]), arguments[2]);
        client.pass("cluster", client::describesTheCluster);
        client.pass("topics", client::createsAndDescribesTopics);
        client.pass("configs", client::altersConfigs);
        for (String codec : CODECS) {
            client.pass("records " + codec, () -> client.writesAndReads(codec, true));
        }
        client.pass("records without idempotence", () -> client.writesAndReads("lz4", false));
        client.pass("acks 0", client::writesWithoutAnswer);
        client.pass("refused records", client::learnsWhichRecordsAreRefused);
        client.pass("delete records", client::deletesRecords);
        client.pass("group eager", () -> client.sharesAGroup("RangeAssignor"));
        client.pass("group cooperative", () -> client.sharesAGroup("CooperativeStickyAssignor"));
        client.pass("group offsets", client::administersGroups);
        client.pass("log dirs", client::describesLogDirs);
        client.pass("delete topics", client::deletesTopics);
        client.admin.close(Duration.ofSeconds(5));
    }

    private void pass(String name, Scenario scenario) {
        long began = System.currentTimeMillis();
        try {
            scenario.run();
        } catch (Throwable failure) {
            // Told here: the launcher of single files fails on Kafka's exceptions, which have no trace.
            System.err.println(name + " failed");
            failure.printStackTrace();
            System.exit(1);
        }
        System.err.println(name + ": " + (System.currentTimeMillis() - began) + " ms");
        System.out.println(name);
    }

    static void check(boolean holds, String claim) {
        if (!holds) {
            throw new AssertionError(claim);
        }
    }

    static void same(Object found, Object wanted, String what) {
        check(wanted.equals(found), what + ": " + found + " instead of " + wanted);
    }

    private static void refused(Future<?> asked, Class<? extends Exception> error) throws Exception {
        try {
            asked.get();
        } catch (ExecutionException failure) {
            if (error != UnknownTopicOrPartitionException.class
                    && failure.getCause() instanceof UnknownTopicOrPartitionException) {
                throw failure; // `eventually` asks again
            }
            same(failure.getCause().getClass(), error, "refusal");
            return;
        }
        throw new AssertionError("not refused with " + error);
    }

    interface Probe {
        boolean holds() throws Exception;
    }

    /** The broker that is asked may be told of a change after the one that made it has answered. */
    static void eventually(Probe probe, String claim) throws Exception {
        long until = System.currentTimeMillis() + PATIENCE_MS;
        while (true) {
            try {
                if (probe.holds()) {
                    return;
                }
            } catch (ExecutionException failure) {
                if (!(failure.getCause() instanceof UnknownTopicOrPartitionException)) {
                    throw failure;
                }
            }
            check(System.currentTimeMillis() < until, claim);
            Thread.sleep(STEP.toMillis());
        }
    }

    // --- admin --------------------------------------------------------------------------------

    private void describesTheCluster() throws Exception {
        DescribeClusterResult cluster =
            admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
        same(cluster.nodes().get().size(), brokers, "brokers");
        check(cluster.controller().get().id() >= 0, "there is a controller");
        same(cluster.clusterId().get().length(), 22, "length of the cluster's id");
        same(cluster.authorizedOperations().get().size(), 7, "operations that everybody may do");
        check(admin.describeFeatures().featureMetadata().get().finalizedFeatures().isEmpty(), "no features");
        refused(admin.createDelegationToken().delegationToken(), UnsupportedByAuthenticationException.class);
    }

    private String create(String name, int partitions) throws Exception {
        String topic = prefix + "-" + name;
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) brokers))).all().get();
        // A leader that was not told of the topic yet refuses. A producer without acknowledgements
        // hears nothing of that, and one with several batches in flight sends the first one last.
        for (int number = 0; number < partitions; number++) {
            TopicPartition part = new TopicPartition(topic, number);
            eventually(() -> admin.listOffsets(Map.of(part, OffsetSpec.latest()))
                .partitionResult(part).get().offset() == 0, "the leader answers");
        }
        return topic;
    }

    @SuppressWarnings("unchecked")
    private TopicDescription describe(String topic) throws Exception {
        // The method that both 2.8 and 4.1 have does not exist.
        DescribeTopicsResult result = admin.describeTopics(List.of(topic));
        String method = "all";
        for (java.lang.reflect.Method one : DescribeTopicsResult.class.getMethods()) {
            if (one.getName().equals("allTopicNames")) {
                method = "allTopicNames";
            }
        }
        Object future = DescribeTopicsResult.class.getMethod(method).invoke(result);
        return ((KafkaFuture<Map<String, TopicDescription>>) future).get().get(topic);
    }

    private void createsAndDescribesTopics() throws Exception {
        String topic = create("topics", 3);
        eventually(() -> describe(topic).partitions().size() == 3, "partitions");
        eventually(() -> describe(topic).partitions().stream().allMatch(
            one -> one.leader() != null && one.isr().size() == brokers), "all are in sync");
        eventually(() -> admin.listTopics().names().get().contains(topic), "the topic is listed");
        refused(admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all(),
            TopicExistsException.class);
        refused(admin.createTopics(List.of(new NewTopic(prefix + "-no", 1, (short) 99))).all(),
            InvalidReplicationFactorException.class);
        refused(admin.createTopics(List.of(new NewTopic(prefix + "-no", 1, (short) 1)
            .configs(Map.of("retention.ms", "much")))).all(), InvalidConfigurationException.class);
        String placed = prefix + "-placed";
        admin.createTopics(List.of(
            new NewTopic(placed, Map.of(0, List.of(1))).configs(Map.of("retention.ms", "7")))).all().get();
        eventually(() -> describe(placed).partitions().get(0).replicas().size() == 1, "replicas by hand");
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
        eventually(() -> describe(topic).partitions().size() == 5, "partitions after growth");
    }

    private Config config(ConfigResource resource) throws Exception {
        Config[] found = new Config[1];
        eventually(() -> {
            found[0] = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            return true;
        }, "settings are told");
        return found[0];
    }

    private void alter(ConfigResource resource, Collection<AlterConfigOp> changes) throws Exception {
        eventually(() -> {
            admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
            return true;
        }, "settings are changed");
    }

    private void altersConfigs() throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, prefix + "-placed");
        ConfigEntry before = config(resource).get("retention.ms");
        same(before.value(), "7", "retention");
        same(before.source(), ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, "its source");
        Collection<AlterConfigOp> changes = List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", "8000"), AlterConfigOp.OpType.SET),
            new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND));
        alter(resource, changes);
        same(config(resource).get("retention.ms").value(), "8000", "retention");
        same(config(resource).get("cleanup.policy").value(), "delete,compact", "policy");
        changes = List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE));
        alter(resource, changes);
        check(config(resource).get("retention.ms").isDefault(), "retention is the default again");
        eventually(() -> {
            refused(admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
                new ConfigEntry("no.such.thing", "1"), AlterConfigOp.OpType.SET)))).all(),
                InvalidConfigurationException.class);
            return true;
        }, "the setting is refused");
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        same(config(broker).get("broker.id").value(), "1", "broker's own id");
    }

    private void describesLogDirs() throws Exception {
        List<Integer> ids = admin.describeCluster().nodes().get().stream()
            .map(node -> node.id()).collect(Collectors.toList());
        TopicPartition written = new TopicPartition(prefix + "-records-none-true", 0);
        // A follower that fell out of the in-sync set meanwhile has it a moment later.
        eventually(() -> brokersWith(written, admin.describeLogDirs(ids).allDescriptions().get()) == brokers,
            "the partition takes room on every broker");
    }

    private static long brokersWith(TopicPartition part, Map<Integer, Map<String, LogDirDescription>> found) {
        return found.values().stream().filter(directories -> directories.values().stream()
            .anyMatch(one -> one.replicaInfos().containsKey(part)
                && one.replicaInfos().get(part).size() > 0)).count();
    }

    private void deletesTopics() throws Exception {
        List<String> mine = admin.listTopics().names().get().stream()
            .filter(name -> name.startsWith(prefix + "-")).collect(Collectors.toList());
        admin.deleteTopics(mine).all().get();
        refused(admin.deleteTopics(List.of(prefix + "-never")).all(),
            UnknownTopicOrPartitionException.class);
    }

    // --- records ------------------------------------------------------------------------------

    private KafkaProducer<String, String> producer(Map<String, Object> extra) {
        Map<String, Object> settings = new HashMap<>(extra);
        settings.put("bootstrap.servers", bootstrap);
        settings.put("linger.ms", 20);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private KafkaConsumer<String, String> consumer(Map<String, Object> extra) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        // What is asked on the same connection waits for as long as a fetch does.
        settings.put("fetch.max.wait.ms", 50);
        settings.putAll(extra);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private static List<ConsumerRecord<String, String>> read(
            KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        long until = System.currentTimeMillis() + PATIENCE_MS;
        while (found.size() < count && System.currentTimeMillis() < until) {
            consumer.poll(STEP).forEach(found::add);
        }
        return found;
    }

    private void writesAndReads(String codec, boolean idempotent) throws Exception {
        String topic = create("records-" + codec + "-" + idempotent, 1);
        TopicPartition part = new TopicPartition(topic, 0);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        Map<String, Object> settings = Map.of(
            "compression.type", codec, "enable.idempotence", idempotent,
            "acks", idempotent ? "all" : "1");
        try (KafkaProducer<String, String> producer = producer(settings)) {
            for (int number = 0; number < 40; number++) {
                ProducerRecord<String, String> record = new ProducerRecord<>(
                    topic, 0, BEGAN_MS + number * 1000, number % 3 == 0 ? null : "key " + number,
                    number == 5 ? null : "value " + number + "x".repeat(200));
                record.headers().add("number", new byte[] {(byte) number}).add("empty", null);
                sent.add(producer.send(record));
            }
        }
        for (int number = 0; number < 40; number++) {
            same(sent.get(number).get().offset(), (long) number, "offset");
        }
        Map<String, Object> isolation = Map.of("isolation.level", "read_committed");
        try (KafkaConsumer<String, String> consumer = consumer(isolation)) {
            consumer.assign(List.of(part));
            consumer.seek(part, 3);
            List<ConsumerRecord<String, String>> found = read(consumer, 37);
            same(found.size(), 37, "records from the fourth on");
            for (ConsumerRecord<String, String> one : found) {
                long number = one.offset();
                same(one.timestamp(), BEGAN_MS + number * 1000, "timestamp");
                check(number % 3 == 0 ? one.key() == null : one.key().equals("key " + number), "key");
                check(number == 5 ? one.value() == null : one.value().startsWith("value " + number), "value");
                same(one.headers().lastHeader("number").value()[0], (byte) number, "header");
                check(one.headers().lastHeader("empty").value() == null, "empty header");
            }
            OffsetAndTimestamp later = consumer.offsetsForTimes(Map.of(part, BEGAN_MS + 12_500)).get(part);
            same(later.offset(), 13L, "offset by time");
            same(later.timestamp(), BEGAN_MS + 13_000, "timestamp found");
            same(consumer.beginningOffsets(List.of(part)).get(part), 0L, "beginning");
            same(consumer.endOffsets(List.of(part)).get(part), 40L, "end");
            check(consumer.offsetsForTimes(Map.of(part, BEGAN_MS * 2)).get(part) == null, "nothing later");
        }
        same(admin.listOffsets(Map.of(part, OffsetSpec.latest())).partitionResult(part).get().offset(),
            40L, "end by admin");
        same(admin.listOffsets(Map.of(part, OffsetSpec.forTimestamp(BEGAN_MS + 1)))
            .partitionResult(part).get().offset(), 1L, "offset by time by admin");
    }

    private void writesWithoutAnswer() throws Exception {
        String topic = create("unanswered", 1);
        TopicPartition part = new TopicPartition(topic, 0);
        Map<String, Object> settings = Map.of("acks", "0", "enable.idempotence", false);
        try (KafkaProducer<String, String> producer = producer(settings)) {
            producer.send(new ProducerRecord<>(topic, "quiet"));
        }
        try (KafkaConsumer<String, String> consumer = consumer(Map.of())) {
            consumer.assign(List.of(part));
            same(read(consumer, 1).get(0).value(), "quiet", "value");
        }
    }

    /** KIP-467: releases up to 3.0 show the message of the batch, later ones that of the record. */
    private void learnsWhichRecordsAreRefused() throws Exception {
        String topic = prefix + "-refused";
        admin.createTopics(List.of(new NewTopic(topic, 1, (short) brokers)
            .configs(Map.of("cleanup.policy", "compact")))).all().get();
        String record = "Compacted topic cannot accept message without key in topic partition "
            + topic + "-0.";
        try (KafkaProducer<String, String> producer = producer(Map.of("linger.ms", 0))) {
            producer.send(new ProducerRecord<>(topic, "without key")).get();
        } catch (ExecutionException failure) {
            Throwable cause = failure.getCause();
            same(cause.getClass(), InvalidRecordException.class, "refusal");
            check(List.of("One or more records have been rejected", record)
                .contains(cause.getMessage()), "what is said: " + cause.getMessage());
            return;
        }
        throw new AssertionError("a record without key was taken");
    }

    private void deletesRecords() throws Exception {
        TopicPartition part = new TopicPartition(prefix + "-records-none-true", 0);
        Map<TopicPartition, RecordsToDelete> until = Map.of(part, RecordsToDelete.beforeOffset(11));
        same(admin.deleteRecords(until).lowWatermarks().get(part).get().lowWatermark(), 11L, "start");
        try (KafkaConsumer<String, String> consumer = consumer(Map.of())) {
            consumer.assign(List.of(part));
            same(read(consumer, 29).get(0).offset(), 11L, "first offset read");
        }
    }

    // --- groups -------------------------------------------------------------------------------

    private void sharesAGroup(String assignor) throws Exception {
        String topic = create("group-" + assignor, 4);
        String group = prefix + "-" + assignor;
        Map<String, Object> settings = Map.of(
            "group.id", group, "heartbeat.interval.ms", 300, "session.timeout.ms", 60_000,
            "partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor);
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            for (int number = 0; number < 40; number++) {
                producer.send(new ProducerRecord<>(topic, number % 4, null, "value " + number));
            }
        }
        Set<String> seen = new HashSet<>();
        KafkaConsumer<String, String> first = consumer(settings);
        KafkaConsumer<String, String> second = consumer(settings);
        try {
            first.subscribe(List.of(topic));
            second.subscribe(List.of(topic));
            pollUntil(List.of(first, second), seen, () -> first.assignment().size() == 2
                && second.assignment().size() == 2 && hasReadAll(first) && hasReadAll(second));
            same(seen.size(), 40, "different values read");
            check(Collections.disjoint(first.assignment(), second.assignment()), "shares are disjoint");
            commit(first, List.of(first, second), seen);
            commit(second, List.of(first, second), seen);
            ConsumerGroupDescription described =
                admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            same(described.members().size(), 2, "members");
            same(described.members().stream().mapToInt(
                one -> one.assignment().topicPartitions().size()).sum(), 4, "partitions assigned");
            check(described.partitionAssignor().equals(
                assignor.equals("RangeAssignor") ? "range" : "cooperative-sticky"), "assignor");
            second.close();
            pollUntil(List.of(first), seen, () -> first.assignment().size() == 4);
            Map<TopicPartition, OffsetAndMetadata> committed = first.committed(first.assignment());
            check(committed.values().stream().allMatch(one -> one.offset() == 10), "commits are kept");
        } finally {
            first.close();
            second.close();
        }
    }

    /** One member may have its share while the other has not heard yet that the round is over. */
    private static void commit(
            KafkaConsumer<String, String> consumer, List<KafkaConsumer<String, String>> consumers,
            Set<String> seen) {
        pollUntil(consumers, seen, () -> {
            try {
                consumer.commitSync();
                return true;
            } catch (RebalanceInProgressException round) {
                return false;
            }
        });
    }

    private static boolean hasReadAll(KafkaConsumer<String, String> consumer) {
        return consumer.assignment().stream().allMatch(part -> consumer.position(part) == 10);
    }

    private interface Condition {
        boolean holds();
    }

    private static void pollUntil(
            List<KafkaConsumer<String, String>> consumers, Set<String> seen, Condition condition) {
        long until = System.currentTimeMillis() + PATIENCE_MS;
        while (!condition.holds()) {
            check(System.currentTimeMillis() < until, "the group settles in time");
            for (KafkaConsumer<String, String> consumer : consumers) {
                consumer.poll(STEP).forEach(record -> seen.add(record.value()));
            }
        }
    }

    private void administersGroups() throws Exception {
        String group = prefix + "-RangeAssignor";
        TopicPartition part = new TopicPartition(prefix + "-group-RangeAssignor", 1);
        check(admin.listConsumerGroups().all().get().stream()
            .anyMatch(one -> one.groupId().equals(group)), "the group is listed");
        same(offsets(group).get(part).offset(), 10L, "offset committed");
        admin.alterConsumerGroupOffsets(group, Map.of(part, new OffsetAndMetadata(4, "back"))).all().get();
        same(offsets(group).get(part), new OffsetAndMetadata(4, "back"), "offset altered");
        admin.deleteConsumerGroupOffsets(group, Set.of(part)).all().get();
        check(!offsets(group).containsKey(part), "the offset is deleted");
        admin.deleteConsumerGroups(Arrays.asList(group, prefix + "-CooperativeStickyAssignor")).all().get();
        check(admin.listConsumerGroups().all().get().stream()
            .noneMatch(one -> one.groupId().startsWith(prefix)), "the groups are gone");
    }

    private Map<TopicPartition, OffsetAndMetadata> offsets(String group) throws Exception {
        return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
    }

    // --- users of secured brokers -------------------------------------------------------------

    /**
     * Write numbered values and read them with a group: settings of clients, exchange.topic and
     * exchange.count are in the file. Return the values, or the name of the error.
     */
    private static String exchange(Path file) throws IOException, InterruptedException {
        Properties settings = new Properties();
        try (Reader reader = Files.newBufferedReader(file)) {
            settings.load(reader);
        }
        String topic = (String) settings.remove("exchange.topic");
        int count = Integer.parseInt((String) settings.remove("exchange.count"));
        List<String> values = new ArrayList<>();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            // Each record would wait for a connection anew.
            producer.partitionsFor(topic);
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int number = 0; number < count; number++) {
                sent.add(producer.send(new ProducerRecord<>(topic, "value " + number)));
            }
            for (Future<RecordMetadata> one : sent) {
                one.get();
            }
        } catch (ExecutionException failure) {
            return failure.getCause().getClass().getSimpleName();
        } catch (ApiException failure) {
            return failure.getClass().getSimpleName();
        }
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            read(consumer, count).forEach(record -> values.add(record.value()));
        } catch (ApiException failure) {
            return failure.getClass().getSimpleName();
        }
        return String.join(",", values);
    }

    /**
     * An application's own sasl.login.callback.handler.class: sasl.jaas.config has the token as its
     * password. Clients do not look into it.
     */
    public static class GivenToken implements AuthenticateCallbackHandler {
        private static final long LIFETIME_MS = 3_600_000;

        private Map<String, ?> options;

        @Override
        public void configure(
                Map<String, ?> settings, String mechanism, List<AppConfigurationEntry> login) {
            options = login.get(0).getOptions();
        }

        @Override
        public void handle(Callback[] callbacks) throws UnsupportedCallbackException {
            for (Callback callback : callbacks) {
                if (!(callback instanceof OAuthBearerTokenCallback)) {
                    throw new UnsupportedCallbackException(callback);
                }
                long nowMs = System.currentTimeMillis();
                ((OAuthBearerTokenCallback) callback).token(new Token(
                    (String) options.get("password"), Set.of(), nowMs + LIFETIME_MS,
                    (String) options.get("username"), nowMs));
            }
        }

        @Override
        public void close() {
        }
    }

    private record Token(
        String value, Set<String> scope, long lifetimeMs, String principalName, Long startTimeMs
    ) implements OAuthBearerToken {
    }
}
