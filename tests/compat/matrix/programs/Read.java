import java.io.BufferedOutputStream;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Arguments: bootstrap servers, topic, number of partitions. Prints "partition offset value", in Base64, for each record from the
 * beginning, until its standard input ends.
 */
public final class Read {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("auto.offset.reset", "none");
        settings.put("enable.auto.commit", "false");
        AtomicBoolean ended = new AtomicBoolean();
        Thread waits = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (java.io.IOException error) {
                // the end, too
            }
            ended.set(true);
        });
        waits.setDaemon(true);
        waits.start();
        PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (int number = 0; number < Integer.parseInt(arguments[2]); number++) {
                partitions.add(new TopicPartition(arguments[1], number));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (!ended.get()) {
                for (ConsumerRecord<byte[], byte[]> row : consumer.poll(Duration.ofMillis(200))) {
                    out.println(row.partition() + " " + row.offset() + " " + Base64.getEncoder().encodeToString(row.value()));
                }
                out.flush();
            }
        }
    }
}
