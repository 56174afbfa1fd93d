'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const path = require('node:path');
const { after, before, test } = require('node:test');
const { Worker, isMainThread } = require('node:worker_threads');
const { Engine, PagedLLMError, STATUS } = require('..');

const ROOT = path.join(__dirname, '../../..');
const GOLDEN = [271, 312, 153, 231, 149, 307, 134, 172];
const open = () =>
  Engine.open(path.join(ROOT, 'tests/golden/tiny/llama'), {
    device: 'cpu', dtype: 'float32', threads: 1, kv_cache_memory_bytes: '8M',
  });
const greedy = (count) => ({ max_tokens: count, temperature: 0, ignore_eos: true });

async function tokensOf(stream) {
  const tokens = [];
  for await (const event of stream) tokens.push(...event.tokens);
  return tokens;
}

if (!isMainThread) {
  // Ended by the test in the middle of an answer.
  open().then(async (engine) => {
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

  test('closing ends streams', async () => {
    const other = await open();
    const stream = other.generate([264], greedy(400));
    other.close();
    await stream.text();
    assert.throws(() => other.generate('x'), { status: STATUS.SHUTTING_DOWN });
  });

  test('workers end in the middle of an answer', async () => {
    for (let i = 0; i < 10; i++) {
      const worker = new Worker(__filename);
      await new Promise((resolve) => worker.once('message', resolve));
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
