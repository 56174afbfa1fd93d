'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const path = require('node:path');
const { after, before, test } = require('node:test');
const { Worker, isMainThread } = require('node:worker_threads');
const { Engine, PagedLLMError, STATUS } = require('..');

const ROOT = path.join(__dirname, '../../..');
const GOLDEN = [271, 312, 153, 231, 149, 307, 134, 172];
const TINY = path.join(ROOT, 'tests/golden/tiny/llama');
const open = (openOptions) =>
  Engine.open(TINY, {
    device: 'cpu', dtype: 'float32', threads: 1, kv_cache_memory_bytes: '8M',
  }, openOptions);
const greedy = (count) => ({ max_tokens: count, temperature: 0, ignore_eos: true });

async function tokensOf(stream) {
  const tokens = [];
  for await (const event of stream) tokens.push(...event.tokens);
  return tokens;
}

if (!isMainThread) {
  // Ended by the test in the middle of the load, or of an answer.
  const unread = { log: () => {}, logLevel: 'trace', progress: () => {} };
  open(unread).then(async (engine) => {
    const stream = engine.generate([264], greedy(400));
    for await (const event of stream) require('node:worker_threads').parentPort.postMessage(event.kind);
  });
} else {
  let engine;
  before(async () => (engine = await open()));
  after(() => engine.close());

  test('golden tokens, many at once', async () => {
    const all = await Promise.all(
      Array.from({ length: 100 }, () => tokensOf(engine.generate([264], greedy(8)))));
    for (const tokens of all) assert.deepStrictEqual(tokens, GOLDEN);
  });

  test('an AbortSignal cancels', async () => {
    const controller = new AbortController();
    const stream = engine.generate([264], greedy(400), { signal: controller.signal });
    await assert.rejects(async () => {
      for await (const event of stream) if (event.kind) controller.abort();
    }, { name: 'AbortError' });
  });

  test('cancel ends a stream', async () => {
    const stream = engine.generate([264], greedy(400));
    stream.cancel();
    let last;
    for await (const event of stream) last = event;
    assert.strictEqual(last.finishReason, 'abort');
  });

  test('chat, bodies, tokens, reports', async () => {
    await engine.chat([{ role: 'user', content: 'hi' }], greedy(4)).text();
    const body = { prompt: [264], ...greedy(8) };
    const answer = JSON.parse(await engine.complete('completions', body).text());
    assert.strictEqual(answer.choices[0].text, await engine.generate([264], greedy(8)).text());
    assert.strictEqual(engine.detokenize(engine.tokenize('hey')), 'hey');
    assert.strictEqual(engine.info().vocab_size, 320);
    assert.match(engine.metrics(), /vllm:num_requests_running/);
  });

  test('errors name the field', async () => {
    assert.throws(() => engine.generate('x', { temperature: 9 }),
      (error) => error instanceof PagedLLMError && error.param === 'temperature');
    await assert.rejects(Engine.open('nowhere'), { status: STATUS.MODEL_ERROR });
  });

  test('the log comes as entries, and only up to its level', async () => {
    // A log alone keeps no process alive.
    const alive = setInterval(() => {}, 1000);
    const entries = { trace: [], info: [] };
    let arrived;
    const first = new Promise((resolve) => (arrived = resolve));
    for (const logLevel of ['info', 'trace']) {
      const log = (entry) => (entries[logLevel].push(entry), logLevel === 'trace' && arrived());
      const other = await open({ logLevel, log });
      await tokensOf(other.generate([264], greedy(4)));
      other.close();
    }
    await first;
    assert.strictEqual(entries.trace[0].level, 'trace');
    assert.match(entries.trace[0].target, /^pagedllm_engine/);
    assert.match(entries.trace[0].message, /./);
    assert.deepStrictEqual(entries.info, []);
    await assert.rejects(open({ log: () => {}, logLevel: 'loud' }), TypeError);
    clearInterval(alive);
  });

  test('a load is reported, and can be cancelled', async () => {
    let last;
    const other = await open({ progress: (...report) => (last = report) });
    other.close();
    assert.ok(last[0] > 0 && last[0] === last[1], `${last}`);
    const controller = new AbortController();
    const opening = open({ signal: controller.signal });
    controller.abort();
    await assert.rejects(opening, { name: 'AbortError' });
    await assert.rejects(open({ signal: controller.signal }), { name: 'AbortError' });
  });

  test('the server inside gives the text of the binding', async () => {
    const server = engine.serve({ host: '127.0.0.1', port: 0 });
    const body = { prompt: [264], ...greedy(8) };
    const response = await fetch(`http://${server.address}/v1/completions`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', Connection: 'close' },
      body: JSON.stringify(body),
    });
    const served = await response.json();
    assert.strictEqual(served.choices[0].text, await engine.generate([264], greedy(8)).text());
    await server.close(1000);
    await server.close();
    await assert.rejects(fetch(`http://${server.address}/health`));
    assert.throws(() => engine.serve({ port: 'x' }), { param: 'port' });
  });

  test('stats count what ran', async () => {
    const before = engine.stats();
    await engine.generate([264], greedy(8)).text();
    const after = engine.stats();
    assert.strictEqual(after.generation_tokens_total - before.generation_tokens_total, 8);
    assert.strictEqual(after.finished_total.length - before.finished_total.length, 1);
  });

  test('an engine that was shut down takes no requests', async () => {
    const other = await open();
    other.checkHealth();
    const stream = other.generate([264], greedy(400));
    await other.shutdown(0);
    await stream.text();
    assert.throws(() => other.checkHealth(), { status: STATUS.SHUTTING_DOWN });
    other.close();
  });

  test('log-probabilities come with their tokens', async () => {
    for await (const event of engine.generate([264], { ...greedy(4), logprobs: 0 })) {
      if (event.kind !== 'text') continue;
      assert.strictEqual(event.logprobs.length, event.tokens.length);
      for (const logprob of event.logprobs) assert.ok(logprob <= 0);
    }
  });

  test('closing ends streams', async () => {
    const other = await open();
    const stream = other.generate([264], greedy(400));
    other.close();
    await stream.text();
    assert.throws(() => other.generate('x'), { status: STATUS.SHUTTING_DOWN });
  });

  test('workers end in the middle of a load or an answer', async () => {
    for (let i = 0; i < 20; i++) {
      const worker = new Worker(__filename);
      await new Promise((resolve) => worker.once(i % 2 ? 'message' : 'online', resolve));
      await worker.terminate();
    }
  });

  test('numbers are those of the header', () => {
    const header = fs.readFileSync(path.join(ROOT, 'include/pagedllm.h'), 'utf8');
    for (const [name, value] of Object.entries(STATUS)) {
      assert.match(header, new RegExp(`#define PAGEDLLM_${name} ${value}\\n`));
    }
  });
}
