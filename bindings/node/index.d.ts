export interface Params {
  max_tokens?: number;
  temperature?: number;
  top_p?: number;
  top_k?: number;
  seed?: number;
  stop?: string | string[];
  n?: number;
  ignore_eos?: boolean;
  /** Any other parameter of OpenAI's API or vLLM's. */
  [name: string]: unknown;
}

export interface Message {
  role: string;
  content: string | object[];
  [name: string]: unknown;
}

export interface Event {
  kind: 'text' | 'finished' | 'prompt' | 'json' | 'failed' | 'unknown';
  choice: number;
  text: string;
  tokens: number[];
  finishReason: 'length' | 'stop' | 'abort' | 'deadline' | 'error' | null;
  promptTokens: number;
  outputTokens: number;
}

export interface CallOptions {
  signal?: AbortSignal;
}

export declare const STATUS: Readonly<Record<string, number>>;

export declare class PagedLLMError extends Error {
  readonly status: number;
  readonly param: string;
  readonly retryAfterMs: number;
}

export declare class Stream implements AsyncIterable<Event> {
  cancel(): void;
  text(): Promise<string>;
  [Symbol.asyncIterator](): AsyncIterator<Event>;
}

export declare class Engine {
  static open(model: string, options?: Record<string, unknown>): Promise<Engine>;
  generate(prompt: string | number[], params?: Params, options?: CallOptions): Stream;
  chat(messages: Message[], params?: Params, options?: CallOptions): Stream;
  complete(
    endpoint: 'completions' | 'chatCompletions' | 'tokenize' | 'detokenize',
    body: object,
    options?: CallOptions,
  ): Stream;
  tokenize(text: string, addSpecialTokens?: boolean): number[];
  detokenize(tokens: number[], skipSpecialTokens?: boolean): string;
  metrics(): string;
  info(): Record<string, unknown>;
  close(): void;
}
