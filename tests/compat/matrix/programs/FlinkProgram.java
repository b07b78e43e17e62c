// Flink: FlinkProgram BOOTSTRAP PREFIX. A job reads a topic and writes another one exactly once, in transactions that checkpoints commit.
// Prints a line of JSON.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class FlinkProgram {
    private static final int RECORDS = 200;

    public static void main(String[] args) throws Exception {
        String error = "";
        try {
            copy(args[0], args[1] + "-in", args[1] + "-out");
        } catch (Throwable problem) {
            problem.printStackTrace();
            error = problem.toString().replace("\\", "/").replace("\"", "'").replaceAll("\\p{Cntrl}", " ");
        }
        System.out.println("{\"step\": \"exactly_once\", \"error\": \"" + error + "\"}");
        System.exit(0);
    }

    private static void copy(String bootstrap, String source, String target) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        try (Admin admin = Admin.create(config)) {
            admin.createTopics(List.of(new NewTopic(source, 1, (short) 1), new NewTopic(target, 1, (short) 1))).all().get();
        }
        List<String> wanted = IntStream.range(0, RECORDS).mapToObj(number -> "value " + number).collect(Collectors.toList());
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (String value : wanted) producer.send(new ProducerRecord<>(source, value));
        }
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment();
        environment.setParallelism(1);
        environment.enableCheckpointing(500);
        KafkaSource<String> reading = KafkaSource.<String>builder()
                .setBootstrapServers(bootstrap)
                .setTopics(source)
                .setGroupId(source)
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        KafkaSink<String> writing = KafkaSink.<String>builder()
                .setBootstrapServers(bootstrap)
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(target)
                .setProperty("transaction.timeout.ms", "600000")
                .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                        .setTopic(target)
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                .build();
        environment.fromSource(reading, WatermarkStrategy.noWatermarks(), "source").sinkTo(writing);
        JobClient job = environment.executeAsync();
        List<String> found = new ArrayList<>();
        config.put("isolation.level", "read_committed");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            TopicPartition place = new TopicPartition(target, 0);
            consumer.assign(Collections.singletonList(place));
            consumer.seekToBeginning(Collections.singletonList(place));
            long deadline = System.currentTimeMillis() + 120_000;
            while (found.size() < RECORDS) {
                if (System.currentTimeMillis() > deadline) throw new AssertionError("read " + found.size() + " of " + RECORDS);
                for (ConsumerRecord<String, String> row : consumer.poll(Duration.ofMillis(300))) found.add(row.value());
            }
        } finally {
            job.cancel().get();
        }
        if (!found.equals(wanted)) throw new AssertionError("found " + found.size() + " values, not those that were written");
    }
}
