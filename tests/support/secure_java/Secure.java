// Produces over TLS with a login until standard input ends: a new producer for every few records.
// Arguments: bootstrap, CA file, certificate and key in one file ("" for none), mechanism ("" for none), user, password, topic.
// Prints {"sent": n, "failed": ["..."]}.

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

public class Secure {
    static final int RECORDS_PER_CONNECTION = 10;

    public static void main(String[] arguments) throws Exception {
        Properties settings = settings(arguments);
        String topic = arguments[6];
        Thread end = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
        });
        end.start();
        int sent = 0;
        List<String> failed = new ArrayList<>();
        do {
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
                for (int number = 0; number < RECORDS_PER_CONNECTION; number++) {
                    producer.send(new ProducerRecord<>(topic, "" + number)).get();
                    sent++;
                }
            } catch (Exception error) {
                failed.add(String.valueOf(error).replace('"', '\''));
                Thread.sleep(100);
            }
        } while (end.isAlive());
        String texts = failed.isEmpty() ? "" : "\"" + String.join("\",\"", failed) + "\"";
        System.out.println("{\"sent\": " + sent + ", \"failed\": [" + texts + "]}");
    }

    static Properties settings(String[] arguments) throws Exception {
        String mechanism = arguments[3], user = arguments[4], password = arguments[5];
        Properties made = new Properties();
        made.put("bootstrap.servers", arguments[0]);
        made.put("security.protocol", mechanism.isEmpty() ? "SSL" : "SASL_SSL");
        made.put("ssl.truststore.type", "PEM");
        made.put("ssl.truststore.certificates", Files.readString(Path.of(arguments[1])));
        if (!arguments[2].isEmpty()) {
            made.put("ssl.keystore.type", "PEM");
            made.put("ssl.keystore.location", arguments[2]);
        }
        made.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        made.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        made.put("max.block.ms", "60000");
        if (mechanism.isEmpty()) {
            return made;
        }
        made.put("sasl.mechanism", mechanism);
        String login = mechanism.equals("PLAIN")
            ? "org.apache.kafka.common.security.plain.PlainLoginModule"
            : "org.apache.kafka.common.security.scram.ScramLoginModule";
        if (mechanism.equals("OAUTHBEARER")) {
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", password);
            made.put("sasl.oauthbearer.token.endpoint.url", password);
            made.put("sasl.login.callback.handler.class", "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler");
            made.put("sasl.jaas.config", "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;");
        } else {
            made.put("sasl.jaas.config", login + " required username=\"" + user + "\" password=\"" + password + "\";");
        }
        return made;
    }
}
