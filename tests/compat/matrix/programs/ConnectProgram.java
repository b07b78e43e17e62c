// Kafka Connect and MirrorMaker 2: ConnectProgram BOOTSTRAP PREFIX. A worker in distributed mode with exactly-once sources reads a file into a
// topic, writes the topic to another file, and mirrors it. Prints a line of JSON for each step.

import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.connect.cli.ConnectDistributed;
import org.apache.kafka.connect.runtime.Connect;
import org.apache.kafka.connect.runtime.Herder;

public final class ConnectProgram {
    private static final int LINES = 200;
    private static final long PATIENCE_MS = 120_000;

    private interface Step {
        void run() throws Exception;
    }

    private static final class Worker extends ConnectDistributed {}

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0];
        String prefix = args[1];
        List<String> lines = IntStream.range(0, LINES).mapToObj(number -> "line " + number).collect(Collectors.toList());
        Path home = Files.createTempDirectory("connect");
        Path source = Files.write(home.resolve("source"), lines);
        Path sink = home.resolve("sink");
        Map<String, String> worker = new HashMap<>();
        worker.put("bootstrap.servers", bootstrap);
        worker.put("group.id", prefix);
        for (String kind : List.of("config", "offset", "status")) {
            worker.put(kind + ".storage.topic", prefix + "-" + kind);
            worker.put(kind + ".storage.replication.factor", "1");
        }
        worker.put("exactly.once.source.support", "enabled");
        worker.put("key.converter", "org.apache.kafka.connect.storage.StringConverter");
        worker.put("value.converter", "org.apache.kafka.connect.storage.StringConverter");
        try (ServerSocket free = new ServerSocket(0)) {
            worker.put("listeners", "http://127.0.0.1:" + free.getLocalPort());
        }
        worker.put("plugin.discovery", "only_scan");
        worker.put("offset.flush.interval.ms", "500");
        Connect<?> connect = new Worker().startConnect(worker);
        try {
            step("source", () -> {
                Map<String, String> config = connector("FileStreamSource", source, "file.FileStreamSourceConnector");
                config.put("topic", prefix + "-lines");
                config.put("exactly.once.support", "required");
                start(connect.herder(), config);
                same(read(bootstrap, prefix + "-lines"), lines);
            });
            step("sink", () -> {
                Map<String, String> config = connector("FileStreamSink", sink, "file.FileStreamSinkConnector");
                config.put("topics", prefix + "-lines");
                start(connect.herder(), config);
                long deadline = System.currentTimeMillis() + PATIENCE_MS;
                while (!Files.exists(sink) || Files.readAllLines(sink).size() < LINES) {
                    if (System.currentTimeMillis() > deadline) throw new AssertionError("the sink gets nothing");
                    Thread.sleep(200);
                }
                same(Files.readAllLines(sink), lines);
            });
            step("mirror", () -> {
                Map<String, String> config = new HashMap<>();
                config.put("name", "mirror");
                config.put("connector.class", "org.apache.kafka.connect.mirror.MirrorSourceConnector");
                config.put("tasks.max", "1");
                config.put("source.cluster.alias", prefix + "-here");
                config.put("target.cluster.alias", prefix + "-there");
                config.put("source.cluster.bootstrap.servers", bootstrap);
                config.put("target.cluster.bootstrap.servers", bootstrap);
                config.put("topics", prefix + "-lines");
                config.put("replication.factor", "1");
                config.put("offset-syncs.topic.replication.factor", "1");
                config.put("exactly.once.support", "required");
                config.put("consumer.isolation.level", "read_committed");
                config.put("key.converter", "org.apache.kafka.connect.converters.ByteArrayConverter");
                config.put("value.converter", "org.apache.kafka.connect.converters.ByteArrayConverter");
                start(connect.herder(), config);
                same(read(bootstrap, prefix + "-here." + prefix + "-lines"), lines);
            });
        } finally {
            connect.stop();
        }
        System.exit(0);
    }

    private static void step(String name, Step step) {
        String error = "";
        try {
            step.run();
        } catch (Throwable problem) {
            problem.printStackTrace();
            error = problem.toString().replace("\\", "/").replace("\"", "'").replaceAll("\\p{Cntrl}", " ");
        }
        System.out.println("{\"step\": \"" + name + "\", \"error\": \"" + error + "\"}");
    }

    private static Map<String, String> connector(String name, Path file, String kind) {
        Map<String, String> config = new HashMap<>();
        config.put("name", name);
        config.put("connector.class", "org.apache.kafka.connect." + kind);
        config.put("tasks.max", "1");
        config.put("file", file.toString());
        return config;
    }

    private static void start(Herder herder, Map<String, String> config) throws Exception {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (true) {
            CompletableFuture<Void> made = new CompletableFuture<>();
            herder.putConnectorConfig(config.get("name"), config, true, (error, info) -> {
                if (error == null) made.complete(null);
                else made.completeExceptionally(error);
            });
            try {
                made.get(60, TimeUnit.SECONDS);
                return;
            } catch (Exception error) {
                // The worker has not joined its group yet.
                if (System.currentTimeMillis() > deadline) throw error;
                Thread.sleep(500);
            }
        }
    }

    private static void same(Object found, Object wanted) {
        if (!found.equals(wanted)) throw new AssertionError("found " + found.toString().substring(0, Math.min(200, found.toString().length())));
    }

    /** The committed records of the topic's partition 0, once there are as many as lines, and no more within a second. */
    private static List<String> read(String bootstrap, String topic) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("isolation.level", "read_committed");
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            TopicPartition place = new TopicPartition(topic, 0);
            consumer.assign(Collections.singletonList(place));
            consumer.seekToBeginning(Collections.singletonList(place));
            long deadline = System.currentTimeMillis() + PATIENCE_MS;
            while (found.size() < LINES) {
                if (System.currentTimeMillis() > deadline) throw new AssertionError("read " + found.size() + " of " + LINES);
                for (ConsumerRecord<String, String> row : consumer.poll(Duration.ofMillis(300))) found.add(row.value());
            }
            for (ConsumerRecord<String, String> row : consumer.poll(Duration.ofMillis(1000))) found.add(row.value());
        }
        return found;
    }
}
