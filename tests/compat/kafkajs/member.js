// A member of kafkajs's, as tests/support/group_members/__init__.py describes members.
'use strict'

const load = name => require(require.resolve(name, { paths: [process.env.KAFKAJS_HOME] }))
const { Kafka, logLevel } = load('kafkajs')

const given = JSON.parse(process.argv[2])
// process.hrtime counts from the same moment as Python's time.monotonic: CLOCK_MONOTONIC.
const now = () => Number(process.hrtime.bigint()) / 1e9
const tell = (event, fields) => process.stdout.write(JSON.stringify({ event, at: now(), ...fields }) + '\n')

async function main() {
  const kafka = new Kafka({
    clientId: 'member',
    brokers: [given.bootstrap],
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 50, maxRetryTime: 300, retries: 1000 },
  })
  const consumer = kafka.consumer({
    groupId: given.group,
    sessionTimeout: given.session_ms,
    rebalanceTimeout: 10000,
    heartbeatInterval: 500,
    maxWaitTimeInMs: 100,
  })
  consumer.on(consumer.events.GROUP_JOIN, event =>
    tell('assigned', { partitions: event.payload.memberAssignment[given.topic] || [] }))
  consumer.on(consumer.events.REBALANCING, () => tell('revoked', { partitions: [] }))
  await consumer.connect()
  await consumer.subscribe({ topics: [given.topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
      if (!isRunning() || isStale() || batch.messages.length === 0) return
      let next = null
      for (const message of batch.messages) {
        tell('record', { partition: batch.partition, offset: Number(message.offset) })
        resolveOffset(message.offset)
        next = Number(message.offset) + 1
      }
      try {
        await consumer.commitOffsets([{ topic: batch.topic, partition: batch.partition, offset: String(next) }])
        tell('committed', { offsets: { [batch.partition]: next } })
      } catch (error) {
        tell('commit_failed', { text: String(error) })
      }
      await heartbeat()
    },
  })
  process.stdin.resume()
  process.stdin.on('end', async () => {
    await consumer.disconnect()
    tell('stopped', {})
    process.exit(0)
  })
}

main().catch(error => {
  process.stderr.write(String(error.stack) + '\n')
  process.exit(1)
})
