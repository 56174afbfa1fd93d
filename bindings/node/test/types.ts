// What TypeScript makes of index.d.ts. Compiled by the tests, never run.
import { Engine, Event, LogEntry, PagedLLMError, STATUS, Server, Stats, Stream } from 'pagedllm';

export async function use(signal: AbortSignal): Promise<string> {
  const engine: Engine = await Engine.open(
    'model.gguf',
    { 'max-num-seqs': 8 },
    {
      log: ({ level, target, message }: LogEntry) => console.log(level === 'warn', target, message),
      logLevel: 'debug',
      progress: (done, total) => console.log(done / total),
      signal,
    },
  );
  const server: Server = engine.serve({ port: 0 });
  const address: string = server.address;
  await server.close(100);
  const stream: Stream = engine.chat([{ role: 'user', content: address }], { max_tokens: 8 }, { signal });
  for await (const event of stream) {
    const kept: Event = event;
    if (kept.finishReason === 'abort') stream.cancel();
    const logprob: number | undefined = event.logprobs?.[0];
    console.log(logprob, event.cachedTokens);
  }
  const ids: number[] = engine.tokenize('text');
  const more: Stream = engine.generate(Uint32Array.from(ids), { top_k: 1, min_p: 0.1 });
  const answer: string = await engine.complete('chatCompletions', { messages: [] }).text();
  const stats: Stats = engine.stats();
  console.log(stats.finished_total.abort, engine.info().vocab_size, engine.metrics());
  await engine.shutdown(10);
  try {
    engine.checkHealth();
  } catch (error) {
    if (error instanceof PagedLLMError && error.status === STATUS.SHUTTING_DOWN) engine.close();
  }
  // @ts-expect-error Engines come from open.
  new Engine();
  // @ts-expect-error There is no such endpoint.
  engine.complete('embeddings', {});
  // @ts-expect-error There is no such level.
  await Engine.open('model.gguf', {}, { logLevel: 'loud' });
  return answer + (await more.text()) + engine.renderChat([]);
}
