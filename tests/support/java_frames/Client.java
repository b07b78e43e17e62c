import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Ordinary work of the Java client on one topic of two partitions: `java -cp JARS Client.java BOOTSTRAP TOPIC`. */
public class Client {
    static final int RECORDS = 12;
    static final String BYTES = "org.apache.kafka.common.serialization.ByteArray";

    public static void main(String[] arguments) {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        for (String codec : List.of("none", "gzip", "lz4")) {
            produce(bootstrap, topic, codec, "none".equals(codec));
        }
        List<TopicPartition> places = List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(consumer(bootstrap, null))) {
            consumer.assign(places);
            consumer.seekToBeginning(places);
            read(consumer);
            consumer.endOffsets(places);
            consumer.offsetsForTimes(Map.of(places.get(0), 1L, places.get(1), Long.MAX_VALUE));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(consumer(bootstrap, "recorded-java"))) {
            consumer.subscribe(List.of(topic));
            read(consumer);
            consumer.poll(Duration.ofMillis(500));  // a heartbeat
            consumer.commitSync();
            consumer.committed(java.util.Set.copyOf(places));
        }
    }

    static void produce(String bootstrap, String topic, String codec, boolean idempotent) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("key.serializer", BYTES + "Serializer");
        config.put("value.serializer", BYTES + "Serializer");
        config.put("compression.type", codec);
        config.put("enable.idempotence", String.valueOf(idempotent));
        config.put("linger.ms", "5");
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config)) {
            for (int at = 0; at < RECORDS; at++) {
                ProducerRecord<byte[], byte[]> one =
                        new ProducerRecord<>(topic, at % 2, ("key" + at).getBytes(StandardCharsets.UTF_8),
                                "value".repeat(at).getBytes(StandardCharsets.UTF_8));
                one.headers().add("name", "content".getBytes(StandardCharsets.UTF_8));
                producer.send(one);
            }
            producer.flush();
        }
    }

    static Properties consumer(String bootstrap, String group) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("key.deserializer", BYTES + "Deserializer");
        config.put("value.deserializer", BYTES + "Deserializer");
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("heartbeat.interval.ms", "100");
        config.put("session.timeout.ms", "6000");
        if (group != null) {
            config.put("group.id", group);
        }
        return config;
    }

    /** Reads until every record has come. */
    static void read(KafkaConsumer<byte[], byte[]> consumer) {
        int count = 0;
        while (count < 3 * RECORDS) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(500));
            count += records.count();
        }
    }
}
