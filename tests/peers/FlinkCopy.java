import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/**
 * Copies the records of `source` to `target` exactly once, with Flink in this process.
 *
 * Arguments: the addresses of brokers, a file, and Flink's settings. While the file exists, a
 * complete checkpoint with new records stops it before it commits their transactions.
 */
public final class FlinkCopy {
    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        for (int index = 2; index < arguments.length; index++) {
            String[] parts = arguments[index].split("=", 2);
            settings.setString(parts[0], parts[1]);
        }
        KafkaSource<String> source =
            KafkaSource.<String>builder()
                .setBootstrapServers(arguments[0])
                .setTopics("source")
                .setGroupId("flink")
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setProperty("isolation.level", "read_committed")
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        KafkaSink<String> sink =
            KafkaSink.<String>builder()
                .setBootstrapServers(arguments[0])
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix("flink")
                .setProperty("transaction.timeout.ms", "600000")
                .setRecordSerializer(
                    KafkaRecordSerializationSchema.builder()
                        .setTopic("target")
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                .build();
        StreamExecutionEnvironment flow =
            StreamExecutionEnvironment.getExecutionEnvironment(settings);
        DataStream<String> records =
            flow.fromSource(source, WatermarkStrategy.noWatermarks(), "source");
        // What is added first is told first of a complete checkpoint, and all are one task.
        records.map(new Gate(arguments[1])).sinkTo(new DiscardingSink<>());
        records.sinkTo(sink);
        flow.execute();
    }

    /** Stops when a checkpoint with new records is complete. */
    private static final class Gate
        implements MapFunction<String, String>, CheckpointedFunction, CheckpointListener {
        private final String hold;
        private boolean passed;
        private boolean passedBefore;

        private Gate(String hold) {
            this.hold = hold;
        }

        @Override
        public String map(String value) {
            passed = true;
            return value;
        }

        @Override
        public void initializeState(FunctionInitializationContext context) {}

        @Override
        public void snapshotState(FunctionSnapshotContext context) {
            passedBefore = passed;
            passed = false;
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) throws InterruptedException {
            if (passedBefore && Files.exists(Path.of(hold))) {
                System.out.println("held");
                Thread.sleep(Long.MAX_VALUE);
            }
        }
    }
}
