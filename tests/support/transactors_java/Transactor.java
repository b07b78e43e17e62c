// Consumes, transforms and produces in transactions until its input ends: java Transactor.java BOOTSTRAP SOURCE TARGET NAME SEED.
// Prints a line for each transaction: commit or abort. Any error that ends the producer or the consumer makes both anew.

import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class Transactor {
    static volatile boolean stopping;

    public static void main(String[] args) throws Exception {
        Thread watcher = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException error) {
                // The parent is gone.
            }
            stopping = true;
        });
        watcher.setDaemon(true);
        watcher.start();
        Random draw = new Random(Long.parseLong(args[4]));
        while (!stopping) {
            try {
                work(args[0], args[1], args[2], args[3], draw);
            } catch (KafkaException error) {
                System.out.println("restart " + error.getClass().getSimpleName() + " " + error.getMessage());
            }
        }
    }

    static void work(String bootstrap, String source, String target, String name, Random draw) {
        Properties common = new Properties();
        common.put("bootstrap.servers", bootstrap);
        Properties reading = new Properties();
        reading.putAll(common);
        reading.put("group.id", name);
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        reading.put("isolation.level", "read_committed");
        reading.put("session.timeout.ms", "6000");
        reading.put("max.poll.records", "20");
        Properties writing = new Properties();
        writing.putAll(common);
        writing.put("transactional.id", name);
        writing.put("transaction.timeout.ms", "30000");
        try (KafkaConsumer<byte[], byte[]> consumer =
                    new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                KafkaProducer<byte[], byte[]> producer =
                    new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            while (!stopping) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) {
                    continue;
                }
                boolean commit = draw.nextInt(8) != 0;
                Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
                Map<TopicPartition, Long> begins = new HashMap<>();
                producer.beginTransaction();
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    byte[] value = commit ? record.value() : ("!" + new String(record.value())).getBytes();
                    producer.send(new ProducerRecord<>(target, record.partition(), null, value));
                    TopicPartition place = new TopicPartition(record.topic(), record.partition());
                    ends.put(place, new OffsetAndMetadata(record.offset() + 1));
                    begins.putIfAbsent(place, record.offset());
                }
                producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
                if (commit) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                    begins.forEach(consumer::seek);
                }
                System.out.println(commit ? "commit" : "abort");
            }
        }
    }
}
