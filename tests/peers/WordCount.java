import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Counts the words of `lines`, and joins each line with its user.
 *
 * Arguments: the addresses of brokers, the application's id, a folder for its state, a file, and
 * settings. While the file exists, whoever counts the word `hold` stops there, in the middle of a
 * transaction. It ends with status 1 at an error only.
 */
public final class WordCount {
    public static void main(String[] arguments) throws InterruptedException {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", arguments[1]);
        settings.put("state.dir", arguments[2]);
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        Path file = Path.of(arguments[3]);
        for (String setting : Arrays.asList(arguments).subList(4, arguments.length)) {
            String[] parts = setting.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream("lines");
        GlobalKTable<String, String> users = builder.globalTable("users");
        lines.join(users, (key, line) -> key, (line, user) -> user + ":" + line).to("joined");
        KStream<String, String> counts =
            lines
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word)
                .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("totals").withCachingDisabled())
                .toStream()
                .mapValues((word, count) -> word + ":" + count);
        counts.to("counts");
        counts.filter((word, count) -> word.equals("hold")).foreach((word, count) -> hold(file));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.start();
        while (streams.state() != KafkaStreams.State.ERROR) {
            Thread.sleep(100);
        }
        System.exit(1);
    }

    private static void hold(Path file) {
        while (Files.exists(file)) {
            System.out.println("held");
            try {
                Thread.sleep(100);
            } catch (InterruptedException end) {
                return;
            }
        }
    }
}
