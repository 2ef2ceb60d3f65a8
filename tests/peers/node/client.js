// What an application does with KafkaJS: `client.js roundtrip BOOTSTRAP TOPIC CODEC`, what it does with
// transactions: `client.js transactions`, and what users of secured brokers do: `client.js exchange`.
//
// The records to write and the questions to ask come as JSON on stdin; what the brokers answered goes
// as JSON to stdout. The test that runs this knows what has to be in it.
"use strict";

const fs = require("fs");
const {
  AssignerProtocol,
  CompressionTypes,
  ConfigResourceTypes,
  Kafka,
  logLevel,
} = require("kafkajs");

// How long brokers on a busy machine may take for anything.
const PATIENCE_MS = 120000;
// By default what is refused is given up after nine seconds.
const RETRY = { retries: 9 };
const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP };

async function eventually(holds, claim) {
  const until = Date.now() + PATIENCE_MS;
  while (!(await holds())) {
    if (Date.now() > until) throw new Error(`not in time: ${claim}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

function byPartition(found, value) {
  return Object.fromEntries(found.map((one) => [one.partition, Number(value(one))]));
}

// --- records --------------------------------------------------------------------------------

function message(record) {
  const headers = {};
  for (const [name, value] of record.headers) {
    headers[name] = [...(headers[name] || []), value];
  }
  return {
    partition: record.partition,
    timestamp: String(record.timestamp),
    key: record.key,
    value: record.value,
    headers,
  };
}

function text(bytes) {
  return bytes === null ? null : bytes.toString();
}

function record(partition, found) {
  const headers = [];
  for (const [name, values] of Object.entries(found.headers)) {
    for (const value of [values].flat()) headers.push([name, text(value)]);
  }
  return {
    partition,
    offset: Number(found.offset),
    timestamp: Number(found.timestamp),
    key: text(found.key),
    value: text(found.value),
    headers,
  };
}

async function write(kafka, topic, compression, records, idempotent) {
  const producer = kafka.producer({ idempotent });
  await producer.connect();
  await producer.send({ topic, compression, acks: -1, messages: records.map(message) });
  await producer.disconnect();
}

async function join(kafka, groupId, topic, found) {
  const consumer = kafka.consumer({
    groupId,
    heartbeatInterval: 300,
    sessionTimeout: 60000,
    maxWaitTimeInMs: 200,
    retry: RETRY,
  });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachMessage: async (given) => found.push(record(given.partition, given.message)),
  });
  return consumer;
}

// One member reads and commits all, and then another one joins.
async function readByGroup(kafka, admin, groupId, topic, count) {
  const found = [];
  const first = await join(kafka, groupId, topic, found);
  await eventually(() => found.length >= count, `${count} records`);
  await first.commitOffsets(nextOffsets(topic, found));
  const second = await join(kafka, groupId, topic, found);
  let shared;
  await eventually(async () => {
    shared = await shares(admin, groupId, topic);
    return shared.length === 2 && shared.every((share) => share.length === 1);
  }, "each member has a partition");
  await first.disconnect();
  await second.disconnect();
  return [found, shared];
}

// Without a group there are no consumers here: a member goes back to where the logs start.
async function readAgain(kafka, groupId, topic, partitions, count) {
  const found = [];
  const consumer = await join(kafka, groupId, topic, found);
  for (let partition = 0; partition < partitions; partition++) {
    consumer.seek({ topic, partition, offset: "0" });
  }
  await eventually(() => found.length >= count, `${count} records again`);
  await consumer.disconnect();
  return found;
}

function nextOffsets(topic, found) {
  const next = new Map();
  for (const one of found) next.set(one.partition, String(one.offset + 1));
  return [...next].map(([partition, offset]) => ({ topic, partition, offset }));
}

// --- the whole of it ------------------------------------------------------------------------

async function isListed(admin, topic) {
  return (await admin.listTopics()).includes(topic);
}

async function shares(admin, groupId, topic) {
  const { members } = (await admin.describeGroups([groupId])).groups[0];
  return members.map(({ memberAssignment }) => {
    const decoded = AssignerProtocol.MemberAssignment.decode(memberAssignment);
    return decoded ? decoded.assignment[topic] || [] : [];
  });
}

async function retention(admin, name) {
  const type = ConfigResourceTypes.TOPIC;
  const asked = { type, name, configNames: ["retention.ms"] };
  const told = await admin.describeConfigs({ includeSynonyms: false, resources: [asked] });
  return told.resources[0].configEntries[0].configValue;
}

async function roundtrip(kafka, topic, codec, { partitions, replicas, records, time, keep }) {
  const admin = kafka.admin();
  const groupId = `${topic}-group`;
  const answer = {};
  await admin.connect();
  await admin.createTopics({
    topics: [{ topic, numPartitions: partitions, replicationFactor: replicas }],
    timeout: PATIENCE_MS,
  });
  await eventually(() => isListed(admin, topic), "the topic is listed");

  const half = records.length / 2;
  await write(kafka, topic, CODECS[codec], records.slice(0, half), false);
  await write(kafka, topic, CODECS[codec], records.slice(half), true);
  [answer.group, answer.shares] = await readByGroup(kafka, admin, groupId, topic, records.length);
  const committed = await admin.fetchOffsets({ groupId, topics: [topic] });
  answer.committed = byPartition(committed[0].partitions, (one) => one.offset);
  answer.state = (await admin.describeGroups([groupId])).groups[0].state;
  answer.read = await readAgain(kafka, groupId, topic, partitions, records.length);

  const offsets = await admin.fetchTopicOffsets(topic);
  answer.starts = byPartition(offsets, (one) => one.low);
  answer.ends = byPartition(offsets, (one) => one.high);
  const found = await admin.fetchTopicOffsetsByTimestamp(topic, time);
  answer.found = byPartition(found, (one) => one.offset);

  await admin.alterConfigs({
    resources: [
      {
        type: ConfigResourceTypes.TOPIC,
        name: topic,
        configEntries: [{ name: "retention.ms", value: "-1" }],
      },
    ],
  });
  answer.retention = await retention(admin, topic);

  const deleted = [{ partition: 0, offset: String(keep) }];
  await admin.deleteTopicRecords({ topic, partitions: deleted });
  answer.kept = byPartition(await admin.fetchTopicOffsets(topic), (one) => one.low);

  await admin.deleteGroups([groupId]);
  answer.groups = (await admin.listGroups()).groups.filter((one) => one.groupId === groupId).length;
  await admin.deleteTopics({ topics: [topic], timeout: PATIENCE_MS });
  await eventually(async () => !(await isListed(admin, topic)), "the topic is gone");
  await admin.disconnect();
  return answer;
}

// --- users of secured brokers ---------------------------------------------------------------

const SASL = { PLAIN: "plain", "SCRAM-SHA-256": "scram-sha-256", "SCRAM-SHA-512": "scram-sha-512" };

function secured({ authority, certificate, key, mechanism, user, password }) {
  const read = (path) => (path ? fs.readFileSync(path) : undefined);
  const ssl = { ca: [read(authority)], cert: read(certificate), key: read(key) };
  if (!mechanism) return { ssl };
  if (mechanism === "OAUTHBEARER") {
    const oauthBearerProvider = async () => ({ value: password });
    return { ssl, sasl: { mechanism: "oauthbearer", oauthBearerProvider } };
  }
  return { ssl, sasl: { mechanism: SASL[mechanism], username: user, password } };
}

// Write numbered values and read them with a group.
async function exchange(asked) {
  const kafka = client(asked.bootstrap, secured(asked));
  const values = Array.from({ length: asked.count }, (_, number) => `value ${number}`);
  const producer = kafka.producer();
  try {
    await producer.connect();
    await producer.send({ topic: asked.topic, acks: -1, messages: values.map((value) => ({ value })) });
  } finally {
    await producer.disconnect();
  }
  const consumer = kafka.consumer({ groupId: asked.group, maxWaitTimeInMs: 200, retry: RETRY });
  const found = [];
  let failure = null;
  consumer.on(consumer.events.CRASH, ({ payload }) => (failure = payload.error));
  try {
    await consumer.connect();
    await consumer.subscribe({ topics: [asked.topic], fromBeginning: true });
    await consumer.run({ eachMessage: async ({ message }) => found.push(text(message.value)) });
    await eventually(() => failure || found.length >= asked.count, `${asked.count} values`);
  } finally {
    await consumer.disconnect();
  }
  if (failure) throw failure;
  return found;
}

// The error code of a refusal, which may have been wrapped.
function refusal(error) {
  for (let inner = error; inner; inner = inner.cause || inner.originalError) {
    if (inner.name === "KafkaJSSASLAuthenticationError") return "SASL_AUTHENTICATION_FAILED";
    if (/AUTHORIZATION_FAILED/.test(inner.type)) return inner.type;
    if (inner.name === "KafkaJSGroupCoordinatorNotFound") return inner.name;
  }
  throw error;
}

async function exchangeAll(all) {
  const outcomes = [];
  for (const asked of all) {
    outcomes.push(
      await exchange(asked).then(
        (read) => ({ read, refused: "" }),
        (error) => ({ read: [], refused: refusal(error) }),
      ),
    );
  }
  return outcomes;
}

// --- transactions ---------------------------------------------------------------------------

// Without a group there are no consumers here.
async function readUpTo(kafka, topic, readUncommitted, enough) {
  const found = [];
  const consumer = kafka.consumer({
    groupId: `${topic}-${readUncommitted}`,
    readUncommitted,
    maxWaitTimeInMs: 200,
    retry: RETRY,
  });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) =>
      found.push({ partition, value: text(message.value) }),
  });
  await eventually(() => enough(found.map((one) => one.value)), `${topic} is read`);
  await consumer.disconnect();
  return found;
}

function transactional(kafka, transactionalId, transactionTimeout = 60000) {
  return kafka.producer({
    transactionalId,
    transactionTimeout,
    idempotent: true,
    maxInFlightRequests: 1,
  });
}

// A transaction with these messages, open.
async function begun(producer, topic, messages) {
  await producer.connect();
  const transaction = await producer.transaction();
  await transaction.send({ topic, messages });
  return transaction;
}

async function endTransactions(kafka, topic, partitions) {
  const producer = transactional(kafka, topic);
  for (const [name, count] of [["committed", 4], ["aborted", 4], ["end", partitions]]) {
    const messages = Array.from({ length: count }, (_, number) => ({
      partition: number % partitions,
      value: `${name} ${number}`,
    }));
    const transaction = await begun(producer, topic, messages);
    await (name === "aborted" ? transaction.abort() : transaction.commit());
  }
  await producer.disconnect();
}

async function copyAll(kafka, prefix, partitions, sourceRecords) {
  const topic = `${prefix}-source`;
  const consumerGroupId = `${prefix}-group`;
  const found = await readUpTo(kafka, topic, false, (values) => values.length === sourceRecords);
  const copies = (name) =>
    found.map(({ partition, value }) => ({ partition, value: `${name} ${value}` }));
  const ends = Array.from({ length: partitions }, (_, partition) => ({
    partition,
    offset: String(sourceRecords / partitions),
  }));
  const offsets = { consumerGroupId, topics: [{ topic, partitions: ends }] };
  const admin = kafka.admin();
  await admin.connect();
  const committed = async () =>
    byPartition(
      (await admin.fetchOffsets({ groupId: consumerGroupId, topics: [topic] }))[0].partitions,
      (one) => one.offset,
    );

  const producer = transactional(kafka, `${prefix}-copy`);
  const aborted = await begun(producer, `${prefix}-copies`, copies("no copy of"));
  await aborted.sendOffsets(offsets);
  await aborted.abort();
  const kept = await begun(producer, `${prefix}-copies`, copies("copy of"));
  const before = await committed();
  await kept.sendOffsets(offsets);
  await kept.commit();
  await eventually(
    async () => Object.values(await committed()).every((offset) => offset >= 0),
    "offsets are committed",
  );
  const after = await committed();
  await producer.disconnect();
  await admin.disconnect();
  return [before, after];
}

async function errorName(work) {
  return work.then(
    () => "",
    (error) => error.type || error.name,
  );
}

// What `transact` in tests/support/transactional_steps.py does in Python.
async function transact(kafka, { prefix, partitions, sourceRecords, lateMs }) {
  const outcome = {};
  const lateProducer = transactional(kafka, `${prefix}-late`, lateMs);
  const late = await begun(lateProducer, `${prefix}-late`, [{ partition: 0, value: "late" }]);

  const isLast = (last) => (values) => last.every((one) => values.includes(one));
  const ends = Array.from({ length: partitions }, (_, number) => `end ${number}`);
  await endTransactions(kafka, `${prefix}-ends`, partitions);
  for (const isolation of ["read_committed", "read_uncommitted"]) {
    const isDirty = isolation === "read_uncommitted";
    const found = await readUpTo(kafka, `${prefix}-ends`, isDirty, isLast(ends));
    outcome[isolation] = found.map((one) => one.value).sort();
  }
  [outcome.before, outcome.after] = await copyAll(kafka, prefix, partitions, sourceRecords);

  const fenced = () => transactional(kafka, `${prefix}-fenced`);
  const [zombieProducer, heirProducer] = [fenced(), fenced()];
  const message = (value) => [{ partition: 0, value }];
  const zombie = await begun(zombieProducer, `${prefix}-fenced`, message("zombie"));
  const heir = await begun(heirProducer, `${prefix}-fenced`, message("heir"));
  await heir.commit();
  outcome.fenced = await errorName(zombie.commit());

  const plain = kafka.producer();
  await plain.connect();
  await plain.send({ topic: `${prefix}-late`, acks: -1, messages: message("after") });
  const found = await readUpTo(kafka, `${prefix}-late`, false, isLast(["after"]));
  outcome.late_read = found.map((one) => one.value);
  outcome.late = await errorName(late.commit());
  for (const producer of [lateProducer, zombieProducer, heirProducer, plain]) {
    await producer.disconnect();
  }
  return outcome;
}

// --- the command line -----------------------------------------------------------------------

function client(brokers, more) {
  return new Kafka({
    brokers,
    // By default a second.
    connectionTimeout: PATIENCE_MS,
    requestTimeout: 2 * PATIENCE_MS,
    retry: RETRY,
    logLevel: logLevel.WARN,
    logCreator: () => ({ log }) => console.error(log.message, log.error || ""),
    ...more,
  });
}

async function main([command, bootstrap, topic, codec]) {
  const task = JSON.parse(fs.readFileSync(0, "utf8"));
  if (command === "exchange") {
    console.log(JSON.stringify(await exchangeAll(task)));
    return;
  }
  if (command === "transactions") {
    console.log(JSON.stringify(await transact(client(task.bootstrap, {}), task)));
    return;
  }
  if (command !== "roundtrip" || !(codec in CODECS)) {
    throw new Error(`not known: ${command} ${codec}`);
  }
  const kafka = client(bootstrap.split(","), {});
  console.log(JSON.stringify(await roundtrip(kafka, topic, codec, task)));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
