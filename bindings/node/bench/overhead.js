// Time of events through the Node binding: node overhead.js MODEL OPTIONS STREAMS TOKENS
//
// To be run on the engine without a model, test-executor:FOLDER, of a library with that feature.
'use strict';

const assert = require('node:assert');
const { Engine } = require('pagedllm');

async function tokensOf(stream) {
  let seen = 0;
  for await (const event of stream) seen += event.tokens.length;
  return seen;
}

async function main(model, options, count, tokens) {
  const engine = await Engine.open(model, JSON.parse(options));
  const params = { max_tokens: tokens, temperature: 0, ignore_eos: true };
  const [start, cpuStart] = [process.hrtime.bigint(), process.cpuUsage()];
  const streams = Array.from({ length: count }, () => tokensOf(engine.generate([1], params)));
  const seen = (await Promise.all(streams)).reduce((sum, one) => sum + one, 0);
  const wall = Number(process.hrtime.bigint() - start) / 1e9;
  const { user, system } = process.cpuUsage(cpuStart);
  console.log(JSON.stringify({ tokens: seen, wall_s: wall, cpu_s: (user + system) / 1e6 }));
  assert.strictEqual(seen, count * tokens);
  engine.close();
}

const [model, options, count, tokens] = process.argv.slice(2);
main(model, options, Number(count), Number(tokens));
