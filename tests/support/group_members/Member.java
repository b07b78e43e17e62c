import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.RetriableException;

/** A group member of the Java client: `java -cp JARS Member.java BOOTSTRAP GROUP TOPIC SESSION_MS ASSIGNOR`. It leaves when stdin
 * closes. The assignor `kip848` stands for the protocol in which the broker assigns; all others are the client's default. */
public class Member implements ConsumerRebalanceListener {
    static volatile boolean stopping;

    public static void main(String[] arguments) throws Exception {
        Thread watch = new Thread(() -> {
            try {
                System.in.transferTo(java.io.OutputStream.nullOutputStream());
            } catch (java.io.IOException closed) {
                // The test has ended.
            }
            stopping = true;
        });
        watch.setDaemon(true);
        watch.start();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config(arguments))) {
            consumer.subscribe(List.of(arguments[2]), new Member());
            while (!stopping) {
                Map<TopicPartition, OffsetAndMetadata> positions = new TreeMap<>(
                        (one, other) -> Integer.compare(one.partition(), other.partition()));
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    tell("record", "\"partition\":" + record.partition() + ",\"offset\":" + record.offset());
                    positions.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                if (!positions.isEmpty()) {
                    commit(consumer, positions);
                }
            }
        }
        tell("stopped", "\"ok\":true");
    }

    static void commit(KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, OffsetAndMetadata> positions) {
        try {
            consumer.commitSync(positions);
        } catch (CommitFailedException | RebalanceInProgressException | RetriableException error) {
            // The group or the broker changes; the next commit, or the next owner, makes up for it.
            tell("commit_failed", "\"code\":\"" + error.getClass().getSimpleName() + "\"");
            return;
        }
        tell("committed", positions.entrySet().stream()
                .map(one -> "\"" + one.getKey().partition() + "\":" + one.getValue().offset())
                .collect(Collectors.joining(",", "\"offsets\":{", "}")));
    }

    static Properties config(String[] arguments) {
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("group.id", arguments[1]);
        if (arguments[4].equals("kip848")) {
            config.put("group.protocol", "consumer");
        } else {
            config.put("session.timeout.ms", arguments[3]);
            config.put("heartbeat.interval.ms", "500");
        }
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("fetch.max.wait.ms", "100");
        config.put("reconnect.backoff.max.ms", "200");
        config.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        config.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        return config;
    }

    static synchronized void tell(String event, String fields) {
        System.out.println("{\"event\":\"" + event + "\",\"at\":" + System.nanoTime() / 1e9 + "," + fields + "}");
    }

    static void tellPartitions(String event, Collection<TopicPartition> partitions) {
        tell(event, partitions.stream().map(one -> "" + one.partition()).collect(Collectors.joining(",", "\"partitions\":[", "]")));
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        tellPartitions("assigned", partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        tellPartitions("revoked", partitions);
    }
}
