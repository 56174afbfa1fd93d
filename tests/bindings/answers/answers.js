// As answers.c, through the Node binding.
const readline = require('node:readline');
const { Engine } = require('pagedllm');

async function main(model, options, params) {
  const engine = await Engine.open(model, JSON.parse(options));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [kind, text] = line.split(/\t(.*)/s);
    const stream =
      kind === 'generate' ? engine.generate(text, JSON.parse(params))
      : kind === 'chat' ? engine.complete('chatCompletions', JSON.parse(text))
      : engine.complete('completions', JSON.parse(text));
    const tokens = [];
    for await (const event of stream) {
      if (event.kind === 'json') console.log(event.text);
      tokens.push(...event.tokens);
    }
    if (kind === 'generate') console.log(tokens.join(' '));
    console.log();
  }
  engine.close();
}

main(...process.argv.slice(2));
