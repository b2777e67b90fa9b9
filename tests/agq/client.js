// ioredis against a RESP front: pushes, pops, subscribes, posts a result. Arguments: where it is installed, the port.
const Redis = require(process.argv[2] + "/node_modules/ioredis");
const options = { port: Number(process.argv[3]), host: "127.0.0.1", connectionName: "node-worker" };
const assert = require("node:assert");
const { once } = require("node:events");

(async () => {
  const producer = new Redis({ ...options, connectionName: "node-producer" });
  const worker = new Redis(options);
  const listener = new Redis({ ...options, connectionName: "node-listener" });
  // ioredis reads INFO first; a SUBSCRIBE that overtakes it would fail with any Redis.
  for (const client of [producer, worker, listener]) if (client.status !== "ready") await once(client, "ready");
  const seen = [];
  listener.on("message", (channel, text) => seen.push(`${JSON.parse(text).job_id} ${JSON.parse(text).status}`));
  assert.strictEqual(await listener.subscribe("job:updates"), 1);

  const waiting = worker.brpop("queue:ready", 20);
  const step = { step_number: 1, tool: "unix", command: "echo", args: ["from node"] };
  assert.strictEqual(await producer.ping(), "PONG");
  await producer.lpush("queue:ready", JSON.stringify({ id: "node-1", plan_id: "p", steps: [step] }));
  const [key, text] = await waiting;
  assert.strictEqual(key, "queue:ready");
  const job = JSON.parse(text);
  assert.deepStrictEqual([job.id, job.plan_id, job.steps[0].args], ["node-1", "p", ["from node"]]);
  const ended = { step_number: 1, stdout: "from node\n", stderr: "", exit_code: 0, success: true };
  const result = { job_id: "node-1", plan_id: "p", success: true, step_results: [ended] };
  await assert.rejects(producer.set("job:node-1:result", JSON.stringify(result)), /claim lost/);
  assert.strictEqual(await worker.set("job:node-1:result", JSON.stringify(result)), "OK");
  assert.strictEqual(await producer.get("job:node-1:status"), "succeeded");
  assert.strictEqual(await producer.get("job:node-1:stdout"), "from node\n");
  const answers = await producer.multi().llen("queue:ready").get("job:node-1:status").exec();
  assert.deepStrictEqual(answers, [[null, 0], [null, "succeeded"]]);
  const piped = await producer.pipeline().ping().exists("job:node-1", "job:none").exec();
  assert.deepStrictEqual(piped, [[null, "PONG"], [null, 1]]);
  await assert.rejects(producer.lpush("queue:ready", "{}"), /invalid job: id: is required/);
  for (let turn = 0; turn < 1000 && !seen.includes("node-1 succeeded"); turn++)
    await new Promise((resolve) => setTimeout(resolve, 20));
  assert.ok(seen.includes("node-1 succeeded"), seen.join());
  for (const client of [producer, worker, listener]) await client.quit();
  console.log("ioredis is served");
})().catch((error) => { console.error(error); process.exit(1); });
