// kafkajs: kafkajs_program.js BOOTSTRAP PREFIX. Prints a line of JSON for each step.
"use strict";

const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require("kafkajs");

const [bootstrap, prefix] = process.argv.slice(2);
const RECORDS = 50;
const PATIENCE_MS = 60_000;
const kafka = new Kafka({ brokers: [bootstrap], clientId: "compat", logLevel: logLevel.NOTHING });

function report(name, error) {
  console.log(JSON.stringify({ step: name, error: String(error).slice(0, 300) }));
}

async function step(name, act) {
  try {
    await act();
    report(name, "");
  } catch (error) {
    console.error(error);
    report(name, `${error}` || "failed");
  }
}

function same(found, wanted) {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) throw new Error(`found ${found.slice(0, 5)}, wanted ${wanted.slice(0, 5)}`);
}

async function create(name, partitions) {
  const topic = `${prefix}-${name}`;
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ topics: [{ topic, numPartitions: partitions, replicationFactor: 1 }] });
  await admin.disconnect();
  return topic;
}

const numbered = (text) => Array.from({ length: RECORDS }, (_, number) => `${text} ${number}`);

async function write(producer, topic, values, partition = 0, compression = CompressionTypes.None) {
  await producer.send({ topic, acks: -1, compression, messages: values.map((value) => ({ value, partition })) });
}

async function read(topic, count, group, options = {}) {
  const consumer = kafka.consumer({ groupId: `${prefix}-${group}`, ...options });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const found = [];
  await new Promise((done, fail) => {
    const timer = setTimeout(() => fail(new Error(`read ${found.length} of ${count}`)), PATIENCE_MS);
    consumer
      .run({
        eachMessage: async ({ message }) => {
          found.push(message.value.toString());
          if (found.length === count) {
            clearTimeout(timer);
            done();
          }
        },
      })
      .catch(fail);
  });
  await consumer.disconnect();
  return found;
}

async function records() {
  const topic = await create("records", 1);
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  const wanted = [];
  for (const [name, type] of [["none", CompressionTypes.None], ["gzip", CompressionTypes.GZIP]]) {
    await write(producer, topic, numbered(name), 0, type);
    wanted.push(...numbered(name));
  }
  await producer.disconnect();
  same(await read(topic, wanted.length, "records"), wanted);
}

async function group() {
  const topic = await create("group", 4);
  const producer = kafka.producer();
  await producer.connect();
  for (let partition = 0; partition < 4; partition++) await write(producer, topic, numbered("g"), partition);
  await producer.disconnect();
  const groupId = `${prefix}-group`;
  const found = new Set();
  const shares = [0, 0];
  const members = [0, 1].map(() => kafka.consumer({ groupId, sessionTimeout: 6000, heartbeatInterval: 500 }));
  await new Promise((done, fail) => {
    const timer = setTimeout(() => fail(new Error(`read ${found.size}, shares ${shares}`)), PATIENCE_MS);
    const look = () => {
      if (found.size === 4 * RECORDS && shares.every((one) => one === 2)) {
        clearTimeout(timer);
        done();
      }
    };
    members.forEach(async (one, at) => {
      try {
        one.on(one.events.GROUP_JOIN, ({ payload }) => {
          shares[at] = (payload.memberAssignment[topic] || []).length;
          look();
        });
        await one.connect();
        await one.subscribe({ topic, fromBeginning: true });
        await one.run({
          eachMessage: async ({ partition, message }) => {
            found.add(`${partition}/${message.offset}`);
            look();
          },
        });
      } catch (error) {
        fail(error);
      }
    });
  });
  for (const one of members) await one.disconnect();
  const admin = kafka.admin();
  await admin.connect();
  const committed = await admin.fetchOffsets({ groupId, topics: [topic] });
  await admin.disconnect();
  same(committed[0].partitions.map((one) => one.offset), ["50", "50", "50", "50"]);
}

async function transactions() {
  const topic = await create("transactions", 1);
  const producer = kafka.producer({ transactionalId: `${prefix}-id`, idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  const wanted = [];
  for (let number = 0; number < 3; number++) {
    const transaction = await producer.transaction();
    await write(transaction, topic, numbered(number));
    if (number === 1) await transaction.abort();
    else {
      await transaction.commit();
      wanted.push(...numbered(number));
    }
  }
  await producer.disconnect();
  same(await read(topic, wanted.length, "committed", { readUncommitted: false }), wanted);
}

async function administer() {
  const topic = await create("admin", 1);
  const admin = kafka.admin();
  await admin.connect();
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
  await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: [{ name: "retention.ms", value: "60000" }] }] });
  const described = await admin.describeConfigs({ resources: [{ ...resource, configNames: ["retention.ms"] }], includeSynonyms: false });
  same([described.resources[0].configEntries[0].configValue], ["60000"]);
  await admin.listGroups();
  await admin.deleteTopics({ topics: [topic] });
  await admin.disconnect();
}

(async () => {
  await step("records", records);
  await step("group", group);
  report("group848", "-");
  await step("transactions", transactions);
  await step("admin", administer);
  process.exit(0);
})();
