// Streams an answer: node stream.js MODEL "Tell me a story"
const { Engine } = require('pagedllm');

async function main(model, question) {
  const engine = await Engine.open(model);
  const controller = new AbortController();
  process.once('SIGINT', () => controller.abort());
  const messages = [{ role: 'user', content: question }];
  const stream = engine.chat(messages, { max_tokens: 200 }, { signal: controller.signal });
  for await (const event of stream) process.stdout.write(event.text);
  process.stdout.write('\n');
  engine.close();
}

main(...process.argv.slice(2));
