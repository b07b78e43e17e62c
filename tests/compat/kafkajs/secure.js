// Produces over TLS with a login until standard input ends: a new client for every few records.
// Arguments: bootstrap, CA file, certificate file ('' for none), key file, mechanism ('' for none), user, password, topic.
// Prints {"sent": n, "failed": ["..."]}.

'use strict';

const fs = require('node:fs');
const { Kafka, logLevel } = require('kafkajs');

const RECORDS_PER_CONNECTION = 10;

async function main([bootstrap, ca, certificate, key, mechanism, user, password, topic]) {
  const ssl = { ca: [fs.readFileSync(ca)] };
  if (certificate) {
    ssl.cert = fs.readFileSync(certificate);
    ssl.key = fs.readFileSync(key);
  }
  let sasl;
  if (mechanism === 'OAUTHBEARER') {
    sasl = { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: password }) };
  } else if (mechanism) {
    sasl = { mechanism: mechanism.toLowerCase(), username: user, password };
  }
  let over = false;
  process.stdin.on('end', () => { over = true; }).resume();
  let sent = 0;
  const failed = [];
  do {
    const kafka = new Kafka({ brokers: bootstrap.split(','), ssl, sasl, logLevel: logLevel.NOTHING, connectionTimeout: 30000, authenticationTimeout: 30000 });
    const producer = kafka.producer();
    try {
      await producer.connect();
      for (let number = 0; number < RECORDS_PER_CONNECTION; number += 1) {
        await producer.send({ topic, acks: -1, messages: [{ value: String(number) }] });
        sent += 1;
      }
    } catch (error) {
      failed.push(String(error));
      await new Promise((done) => setTimeout(done, 100));
    }
    await producer.disconnect();
  } while (!over);
  process.stdout.write(JSON.stringify({ sent, failed }) + '\n', () => process.exit(0));
}

main(process.argv.slice(2));
