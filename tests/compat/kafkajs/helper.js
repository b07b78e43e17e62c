// kafkajs behind JSON lines: one request object per line on stdin, one answer per line on stdout, in order.
//
//   {"op": "produce", bootstrap, topic, codec, acks, idempotent, records: [{partition, key, value, headers, timestamp}]}
//     -> {"offsets": [...]}        offsets as strings, "-1" where the broker does not answer (acks=0)
//   {"op": "consume", bootstrap, topic, partitions, group}
//     -> {"records": [{partition, offset, key, value, headers, timestamp, appendTime}]}
//        group: a group id, or null to fetch without a group
//   {"op": "admin", bootstrap, calls: [[method, argument]]}
//     -> {"results": [...]}        what the methods of one admin client answer
//   any failure -> {"error": "...", "code": <kafka error code or null>}
//
// Bytes are base64 strings, null stays null.
'use strict'

const readline = require('readline')
// The packages live in a cache directory, not beside this file.
const load = name => require(require.resolve(name, { paths: [process.env.KAFKAJS_HOME] }))
const { Kafka, CompressionTypes, CompressionCodecs, Partitioners, logLevel } = load('kafkajs')
const snappy = load('kafkajs-snappy')
const lz4 = load('lz4-napi')
const zstd = load('@bokuweb/zstd-wasm')

const DEADLINE_MS = 60000
const MAX_BYTES = 8 << 20
// For zstd frames that do not tell their size.
const INFLATED_BYTES_MAX = 16 << 20

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}
CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  async compress(encoder) { return lz4.compressFrame(encoder.buffer) },
  async decompress(buffer) { return lz4.decompressFrame(buffer) },
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  async compress(encoder) { return Buffer.from(zstd.compress(encoder.buffer, 3)) },
  async decompress(buffer) { return Buffer.from(zstd.decompress(buffer, { defaultHeapSize: INFLATED_BYTES_MAX })) },
})

const bytes = text => (text === null ? null : Buffer.from(text, 'base64'))
const text = data => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'))

function client(bootstrap) {
  return new Kafka({
    clientId: 'compat',
    brokers: [bootstrap],
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 50, maxRetryTime: 500, retries: 20 },
  })
}

function headersIn(pairs) {
  const headers = {}
  for (const [key, value] of pairs) {
    const before = headers[key]
    headers[key] = before === undefined ? bytes(value) : [].concat(before, [bytes(value)])
  }
  return headers
}

function headersOut(headers) {
  return Object.entries(headers || {}).flatMap(([key, value]) =>
    Array.isArray(value) ? value.map(one => [key, text(one)]) : [[key, text(value)]])
}

async function produce({ bootstrap, topic, codec, acks, idempotent, records }) {
  const producer = client(bootstrap).producer({
    idempotent,
    maxInFlightRequests: idempotent ? 1 : null,
    createPartitioner: Partitioners.DefaultPartitioner,
  })
  await producer.connect()
  try {
    const answers = await producer.send({
      topic,
      acks,
      compression: CODECS[codec],
      messages: records.map(({ partition, key, value, headers, timestamp }) => ({
        partition,
        key: bytes(key),
        value: bytes(value),
        headers: headersIn(headers),
        ...(timestamp === null ? {} : { timestamp: String(timestamp) }),
      })),
    })
    // One batch per partition: offsets follow from its base.
    const next = new Map(answers.map(answer => [answer.partition, BigInt(answer.baseOffset)]))
    return {
      offsets: records.map(({ partition }) => {
        const offset = next.get(partition)
        if (offset === undefined) return '-1'
        next.set(partition, offset + 1n)
        return offset.toString()
      }),
    }
  } finally {
    await producer.disconnect()
  }
}

async function consume(request) {
  const kafka = client(request.bootstrap)
  const admin = kafka.admin()
  await admin.connect()
  const ends = new Map()
  try {
    for (const { partition, low, high } of await admin.fetchTopicOffsets(request.topic)) {
      if (request.partitions.includes(partition)) ends.set(partition, { next: BigInt(low), high: BigInt(high) })
    }
  } finally {
    await admin.disconnect()
  }
  const records = []
  // Returns true when every partition has been read to its end.
  const take = (partition, messages) => {
    const end = ends.get(partition)
    if (end === undefined) return false
    for (const message of messages) {
      const offset = BigInt(message.offset)
      // A batch may start before the offset that was asked for.
      if (offset < end.next) continue
      end.next = offset + 1n
      records.push({
        partition,
        offset: message.offset,
        key: text(message.key),
        value: text(message.value),
        headers: headersOut(message.headers),
        timestamp: message.timestamp,
        appendTime: message.batchContext ? message.batchContext.timestampType === 1 : null,
      })
    }
    return finished()
  }
  // Behind the last record there may be offsets without one, which kafkajs steps over by itself.
  const stepped = (partition, lastOffset) => {
    const end = ends.get(partition)
    if (end !== undefined && BigInt(lastOffset) >= end.next) end.next = BigInt(lastOffset) + 1n
    return finished()
  }
  const finished = () => [...ends.values()].every(({ next, high }) => next >= high)
  if (!finished()) {
    await (request.group ? consumeInGroup(kafka, request, take, stepped) : consumeAlone(kafka, request, ends, take, finished))
  }
  return { records }
}

async function consumeInGroup(kafka, { topic, group }, take, stepped) {
  const consumer = kafka.consumer({ groupId: group, maxWaitTimeInMs: 10, maxBytesPerPartition: MAX_BYTES, sessionTimeout: 30000 })
  await consumer.connect()
  try {
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    await new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error('consume does not end')), DEADLINE_MS)
      const end = (then, value) => { clearTimeout(timer); then(value) }
      consumer.on(consumer.events.CRASH, ({ payload }) => end(reject, payload.error))
      consumer.on(consumer.events.END_BATCH_PROCESS, ({ payload }) => {
        if (stepped(payload.partition, payload.lastOffset)) end(resolve)
      })
      consumer.run({
        autoCommit: false,
        eachBatch: async ({ batch }) => {
          if (take(batch.partition, batch.messages)) end(resolve)
        },
      }).catch(error => end(reject, error))
    })
  } finally {
    await consumer.disconnect()
  }
}

// kafkajs has no public consumer without a group. This drives its own cluster, request encoders and batch decoders instead.
async function consumeAlone(kafka, { topic }, ends, take, finished) {
  const create = Object.getOwnPropertySymbols(kafka).find(symbol => String(symbol).includes('createCluster'))
  const cluster = kafka[create]({ metadataMaxAge: 300000, isolationLevel: 0 })
  const deadline = Date.now() + DEADLINE_MS
  await cluster.connect()
  try {
    await cluster.addTargetTopic(topic)
    while (!finished()) {
      if (Date.now() > deadline) throw new Error('consume does not end')
      const leaders = cluster.findLeaderForPartitions(topic, [...ends.keys()])
      for (const [nodeId, partitions] of Object.entries(leaders)) {
        const broker = await cluster.findBroker({ nodeId })
        const answer = await broker.fetch({
          replicaId: -1,
          isolationLevel: 0,
          maxWaitTime: 10,
          minBytes: 1,
          maxBytes: 8 * MAX_BYTES,
          topics: [{
            topic,
            partitions: partitions
              .filter(partition => ends.get(partition).next < ends.get(partition).high)
              .map(partition => ({ partition, fetchOffset: ends.get(partition).next.toString(), maxBytes: MAX_BYTES })),
          }],
        })
        for (const { partitions: answers } of answer.responses) {
          for (const { partition, messages } of answers) take(partition, messages)
        }
      }
    }
  } finally {
    await cluster.disconnect()
  }
}

async function admin({ bootstrap, calls }) {
  const one = client(bootstrap).admin()
  await one.connect()
  try {
    const results = []
    for (const [method, argument] of calls) {
      const result = await one[method](argument)
      results.push(result === undefined ? null : result)
    }
    return { results }
  } finally {
    await one.disconnect()
  }
}

async function main() {
  await zstd.init()
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line)
    let answer
    try {
      answer = await { produce, consume, admin }[request.op](request)
    } catch (error) {
      const cause = error.cause && error.cause.code !== undefined ? error.cause : error
      answer = { error: String(error.stack || error), code: typeof cause.code === 'number' ? cause.code : null }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
}

main().then(() => process.exit(0), error => { console.error(error); process.exit(1) })
