// Kafka Streams: Streams BOOTSTRAP PREFIX. Counts records by key with both guarantees. Prints a line of JSON for each step.

import java.nio.file.Files;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;

public final class Streams {
    private static final int KEYS = 5;
    private static final int RECORDS = 100;

    public static void main(String[] args) throws Exception {
        for (String guarantee : List.of("at_least_once", "exactly_once_v2")) {
            String error = "";
            try {
                count(args[0], args[1] + "-" + guarantee.replace('_', '-'), guarantee);
            } catch (Throwable problem) {
                problem.printStackTrace();
                error = problem.toString().replace("\\", "/").replace("\"", "'").replaceAll("\\p{Cntrl}", " ");
            }
            System.out.println("{\"step\": \"" + guarantee + "\", \"error\": \"" + error + "\"}");
        }
        System.exit(0);
    }

    private static void count(String bootstrap, String name, String guarantee) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        try (Admin admin = Admin.create(config)) {
            admin.createTopics(List.of(new NewTopic(name + "-in", 2, (short) 1), new NewTopic(name + "-out", 2, (short) 1))).all().get();
        }
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < RECORDS; number++) producer.send(new ProducerRecord<>(name + "-in", "k" + number % KEYS, "v"));
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(name + "-in").groupByKey().count().toStream().mapValues(Object::toString).to(name + "-out");
        config.put("application.id", name);
        config.put("processing.guarantee", guarantee);
        config.put("commit.interval.ms", "100");
        config.put("statestore.cache.max.bytes", "0");
        config.put("state.dir", Files.createTempDirectory("streams").toString());
        config.put("auto.offset.reset", "earliest");
        config.put("default.key.serde", Serdes.StringSerde.class.getName());
        config.put("default.value.serde", Serdes.StringSerde.class.getName());
        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.start();
        Properties reading = new Properties();
        reading.put("bootstrap.servers", bootstrap);
        reading.put("isolation.level", "read_committed");
        Map<String, Integer> counts = new HashMap<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> places =
                    IntStream.range(0, 2).mapToObj(number -> new TopicPartition(name + "-out", number)).collect(Collectors.toList());
            consumer.assign(places);
            consumer.seekToBeginning(places);
            long deadline = System.currentTimeMillis() + 120_000;
            while (counts.values().stream().mapToInt(Integer::intValue).sum() < RECORDS) {
                if (System.currentTimeMillis() > deadline) throw new AssertionError("counts: " + counts);
                for (ConsumerRecord<String, String> row : consumer.poll(Duration.ofMillis(300))) {
                    int count = Integer.parseInt(row.value());
                    if (count != counts.getOrDefault(row.key(), 0) + 1) throw new AssertionError(row.key() + " is " + count + " after " + counts);
                    counts.put(row.key(), count);
                }
            }
        } finally {
            streams.close(Duration.ofSeconds(30));
        }
    }
}
