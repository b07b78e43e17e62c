import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads a topic from the beginning to its end, and prints each key with its last value. Arguments: bootstrap servers, topic. */
public final class LastValues {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("isolation.level", "read_committed");
        settings.put("max.partition.fetch.bytes", "2000");
        Map<String, String> last = new TreeMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            consumer.partitionsFor(arguments[1]).forEach(one -> partitions.add(new TopicPartition(arguments[1], one.partition())));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(one -> consumer.position(one) < ends.get(one))) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    String key = new String(record.key(), StandardCharsets.UTF_8);
                    if (record.value() == null) {
                        last.remove(key);
                    } else {
                        last.put(key, new String(record.value(), StandardCharsets.UTF_8));
                    }
                }
            }
        }
        last.forEach((key, value) -> System.out.println(key + "=" + value));
    }
}
