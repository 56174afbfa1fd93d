// A web page over a model inside this program: node service.js MODEL [HOST] [PORT]
//
// Answers stream as server-sent events. A reader that goes away cancels its request.
'use strict';

const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { Engine, PagedLLMError, STATUS } = require('pagedllm');

const MAX_BODY = 64 << 10;
const MAX_ANSWERS = 8; // At once; others are told to come again.
const MAX_TOKENS = 512;
const MAX_TIME_MS = 60_000;
const PAGE = fs.readFileSync(path.join(__dirname, 'page.html'));

class Refusal extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

async function read(request) {
  const pieces = [];
  let size = 0;
  for await (const piece of request) {
    size += piece.length;
    if (size > MAX_BODY) throw new Refusal(413, `at most ${MAX_BODY} bytes`);
    pieces.push(piece);
  }
  try {
    return JSON.parse(Buffer.concat(pieces));
  } catch (error) {
    throw new Refusal(400, error.message);
  }
}

let answers = 0;

async function answer(engine, request, response) {
  const { messages } = await read(request);
  if (answers >= MAX_ANSWERS) throw new Refusal(429, 'too many answers at once');
  const gone = new AbortController();
  response.on('close', () => gone.abort());
  const signal = AbortSignal.any([gone.signal, AbortSignal.timeout(MAX_TIME_MS)]);
  answers++;
  try {
    const stream = engine.chat(messages, { max_tokens: MAX_TOKENS }, { signal });
    response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
    for await (const event of stream) {
      response.write(`data: ${JSON.stringify({ text: event.text })}\n\n`);
    }
  } finally {
    answers--;
  }
}

function codeOf(error) {
  if (error instanceof Refusal) return error.code;
  if (!(error instanceof PagedLLMError)) return 500;
  const { INVALID_REQUEST, CONTEXT_LENGTH, QUEUE_FULL } = STATUS;
  if ([INVALID_REQUEST, CONTEXT_LENGTH].includes(error.status)) return 400;
  return error.status === QUEUE_FULL ? 429 : 503;
}

async function handle(engine, request, response) {
  const route = `${request.method} ${request.url}`;
  if (route === 'GET /') {
    response.setHeader('Content-Type', 'text/html').end(PAGE);
  } else if (route === 'GET /stats') {
    response.setHeader('Content-Type', 'application/json').end(JSON.stringify(engine.stats()));
  } else if (route === 'POST /answer') {
    await answer(engine, request, response);
    response.end();
  } else {
    throw new Refusal(404, 'there is nothing here');
  }
}

async function main(model, host = '127.0.0.1', port = '8080') {
  const engine = await Engine.open(model);
  const server = http.createServer((request, response) => {
    handle(engine, request, response).catch((error) => {
      if (response.headersSent) return response.destroy();
      response.writeHead(codeOf(error), { 'Content-Type': 'text/plain' }).end(error.message);
    });
  });
  server.listen(Number(port), host, () => {
    console.log(`http://${host}:${server.address().port}`);
  });
  const stop = () => {
    server.close(() => engine.close());
    server.closeAllConnections();
  };
  process.once('SIGINT', stop);
  process.once('SIGTERM', stop);
}

main(...process.argv.slice(2));
