import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Arguments: bootstrap servers, topic, URL of Apicurio's API, number of records. Prints the records of partition 0 as JSON. */
public final class ApicurioRead {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", AvroKafkaDeserializer.class.getName());
        settings.put("apicurio.registry.url", arguments[2]);
        settings.put("apicurio.registry.as-confluent", "true");
        settings.put("apicurio.registry.use-id", "contentId");
        long left = Long.parseLong(arguments[3]);
        try (KafkaConsumer<byte[], GenericRecord> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> partitions = List.of(new TopicPartition(arguments[1], 0));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (left > 0) {
                for (ConsumerRecord<byte[], GenericRecord> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(record.value());
                    left--;
                }
            }
        }
    }
}
