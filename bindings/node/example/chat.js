// Answers as the model generates, until Ctrl-C: node chat.js MODEL "What is gravity?"
const { Engine } = require('pagedllm');

async function main(model, question) {
  const engine = await Engine.open(model);
  const stream = engine.chat([{ role: 'user', content: question }], { max_tokens: 200 });
  process.once('SIGINT', () => stream.cancel());
  for await (const event of stream) {
    process.stdout.write(event.text);
    if (event.finishReason === 'abort') process.stdout.write(' [cancelled]');
  }
  process.stdout.write('\n');
  engine.close();
}

main(...process.argv.slice(2));
