// Java's own clients: Clients BOOTSTRAP PREFIX. Prints a line of JSON for each step.

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class Clients {
    private static final int RECORDS = 50;
    private static final long PATIENCE_MS = 60_000;
    private static String bootstrap;
    private static String prefix;

    private interface Step {
        void run() throws Exception;
    }

    public static void main(String[] args) {
        bootstrap = args[0];
        prefix = args[1];
        step("records", Clients::records);
        step("group", () -> group("classic"));
        if (ConsumerConfig.configNames().contains("group.protocol")) step("group848", () -> group("consumer"));
        else report("group848", "-");
        step("transactions", Clients::transactions);
        step("admin", Clients::admin);
    }

    private static void step(String name, Step step) {
        try {
            step.run();
            report(name, "");
        } catch (Throwable error) {
            error.printStackTrace();
            report(name, error.toString());
        }
    }

    private static void report(String name, String error) {
        String text = error.replace("\\", "\\\\").replace("\"", "'").replaceAll("\\p{Cntrl}", " ");
        System.out.println("{\"step\": \"" + name + "\", \"error\": \"" + text.substring(0, Math.min(300, text.length())) + "\"}");
        System.out.flush();
    }

    private static Properties config(String... pairs) {
        Properties found = new Properties();
        found.put("bootstrap.servers", bootstrap);
        found.put("key.serializer", StringSerializer.class.getName());
        found.put("value.serializer", StringSerializer.class.getName());
        found.put("key.deserializer", StringDeserializer.class.getName());
        found.put("value.deserializer", StringDeserializer.class.getName());
        for (int at = 0; at < pairs.length; at += 2) found.put(pairs[at], pairs[at + 1]);
        return found;
    }

    private static String create(String name, int partitions) throws Exception {
        String topic = prefix + "-" + name;
        try (AdminClient admin = AdminClient.create(config())) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
        }
        return topic;
    }

    private static void same(Object found, Object wanted) {
        if (!found.equals(wanted)) throw new AssertionError("found " + found + ", wanted " + wanted);
    }

    private static List<String> read(String topic, int count, String isolation) {
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config("isolation.level", isolation))) {
            TopicPartition place = new TopicPartition(topic, 0);
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            long deadline = System.currentTimeMillis() + PATIENCE_MS;
            while (found.size() < count) {
                if (System.currentTimeMillis() > deadline) throw new AssertionError("read " + found.size() + " of " + count);
                for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(500))) found.add(one.value());
            }
        }
        return found;
    }

    private static void records() throws Exception {
        String topic = create("records", 1);
        List<String> wanted = new ArrayList<>();
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(config("compression.type", codec, "acks", "all"))) {
                for (int number = 0; number < RECORDS; number++) {
                    producer.send(new ProducerRecord<>(topic, codec + " " + number));
                    wanted.add(codec + " " + number);
                }
            }
        }
        same(read(topic, wanted.size(), "read_uncommitted"), wanted);
    }

    private static void group(String protocol) throws Exception {
        String topic = create("group-" + protocol, 4);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config())) {
            for (int partition = 0; partition < 4; partition++) {
                for (int number = 0; number < RECORDS; number++) {
                    producer.send(new ProducerRecord<>(topic, partition, null, Integer.toString(number)));
                }
            }
        }
        String[] pairs = {"group.id", prefix + "-" + protocol, "auto.offset.reset", "earliest", "enable.auto.commit", "false"};
        Properties config = config(pairs);
        if (!protocol.equals("classic")) config.put("group.protocol", protocol);
        List<KafkaConsumer<String, String>> members = List.of(new KafkaConsumer<>(config), new KafkaConsumer<>(config));
        for (KafkaConsumer<String, String> one : members) one.subscribe(List.of(topic));
        Set<String> found = new HashSet<>();
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (found.size() < 4 * RECORDS || members.stream().anyMatch(one -> !hasReadTwo(one))) {
            if (System.currentTimeMillis() > deadline) throw new AssertionError("two members do not share four partitions");
            for (KafkaConsumer<String, String> one : members) {
                for (ConsumerRecord<String, String> row : one.poll(Duration.ofMillis(200))) found.add(row.partition() + "/" + row.offset());
            }
        }
        for (KafkaConsumer<String, String> one : members) {
            one.commitSync();
            one.close();
        }
        try (AdminClient admin = AdminClient.create(config())) {
            Map<TopicPartition, OffsetAndMetadata> committed =
                    admin.listConsumerGroupOffsets(prefix + "-" + protocol).partitionsToOffsetAndMetadata().get();
            for (OffsetAndMetadata one : committed.values()) same(one.offset(), (long) RECORDS);
            same(committed.size(), 4);
        }
    }

    /** Whether a member has two partitions and stands at their end: what a member before it has read there is not committed. */
    private static boolean hasReadTwo(KafkaConsumer<String, String> member) {
        Set<TopicPartition> assigned = member.assignment();
        return assigned.size() == 2 && assigned.stream().allMatch(one -> member.position(one) == RECORDS);
    }

    private static void transactions() throws Exception {
        String topic = create("transactions", 1);
        List<String> wanted = new ArrayList<>();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config("transactional.id", prefix + "-id"))) {
            producer.initTransactions();
            for (int number = 0; number < 3; number++) {
                producer.beginTransaction();
                for (int one = 0; one < RECORDS; one++) {
                    producer.send(new ProducerRecord<>(topic, number + " " + one));
                    if (number != 1) wanted.add(number + " " + one);
                }
                if (number == 1) producer.abortTransaction();
                else producer.commitTransaction();
            }
        }
        same(read(topic, wanted.size(), "read_committed"), wanted);
    }

    private static void admin() throws Exception {
        // The calls that all versions have: AlterConfigs is gone from the newest ones, and the oldest ones have no other.
        String topic = prefix + "-admin";
        try (AdminClient admin = AdminClient.create(config())) {
            NewTopic wanted = new NewTopic(topic, 1, (short) 1).configs(Map.of("retention.ms", "60000"));
            admin.createTopics(List.of(wanted)).all().get();
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            same(admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value(), "60000");
            admin.describeCluster().nodes().get();
            admin.listConsumerGroups().all().get();
            admin.deleteTopics(List.of(topic)).all().get();
        }
    }
}
