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
  /** Number of the choice, from 0. */
  choice: number;
  /** Text to append; never ends inside a character. */
  text: string;
  tokens: number[];
  /** Natural logarithms of the tokens' probabilities, where asked for. */
  logprobs: number[] | null;
  finishReason: 'length' | 'stop' | 'abort' | 'deadline' | 'error' | null;
  /** Why an answer failed, as in STATUS; else STATUS.OK. */
  status: number;
  promptTokens: number;
  /** Of these, found in the prefix cache; known at the end. */
  cachedTokens: number;
  outputTokens: number;
}

export interface CallOptions {
  /** Cancels the request; its iterator then throws the signal's reason. */
  signal?: AbortSignal;
}

export type LogLevel = 'error' | 'warn' | 'info' | 'debug' | 'trace';

export interface LogEntry {
  level: LogLevel;
  /** The part of the library that speaks. */
  target: string;
  message: string;
}

export interface OpenOptions {
  /** Receives the log until the engine is closed; without it there is none. */
  log?: (entry: LogEntry) => void;
  /** The finest level that is logged; 'info' by default. */
  logLevel?: LogLevel;
  /** Is told how the load goes, some times a second and at its end. */
  progress?: (doneBytes: number, totalBytes: number) => void;
  /** Cancels the load; the promise is then rejected with the signal's reason. */
  signal?: AbortSignal;
}

/** Counters of an engine; names may be added. */
export interface Stats {
  num_running: number;
  num_waiting: number;
  num_blocks: number;
  num_blocks_used: number;
  num_blocks_cached: number;
  prompt_tokens_total: number;
  prompt_tokens_cached_total: number;
  generation_tokens_total: number;
  preemptions_total: number;
  steps_total: number;
  finished_total: { stop: number; length: number; abort: number; error: number };
  rejected_queue_full_total: number;
}

/** What was loaded; names may be added. */
export interface Info {
  names: string[];
  architecture: string;
  device: string;
  weight_bytes: number;
  max_model_len: number;
  vocab_size: number;
  eos_token_ids: number[];
  num_blocks: number;
  block_size: number;
  block_bytes: number;
  max_num_seqs: number;
  max_num_batched_tokens: number;
  has_chat_template: boolean;
}

export declare const STATUS: Readonly<Record<string, number>>;

export declare class PagedLLMError extends Error {
  readonly status: number;
  /** The option or field to blame; empty where there is none. */
  readonly param: string;
  /** When trying again makes sense; 0 if that is unknown. */
  readonly retryAfterMs: number;
}

/** Events of one request. Leaving the loop early cancels the request. */
export declare class Stream implements AsyncIterable<Event> {
  private constructor();
  /** Ends the request soon; its events end with finishReason 'abort'. */
  cancel(): void;
  /** The whole text of the first choice, or the JSON of an answer. */
  text(): Promise<string>;
  [Symbol.asyncIterator](): AsyncIterator<Event>;
}

/** An HTTP server over an engine. */
export declare class Server {
  private constructor();
  /** Where it listens, as host:port; empty on a unix socket. */
  readonly address: string;
  /** Takes no more connections, gives those there are some time, and frees the server. */
  close(timeoutMs?: number): Promise<void>;
}

/** A model that answers. */
export declare class Engine {
  private constructor();
  /** Loads a GGUF file or a directory with config.json. Options are named as on the command line. */
  static open(
    model: string,
    options?: Record<string, unknown>,
    openOptions?: OpenOptions,
  ): Promise<Engine>;
  generate(prompt: string | ArrayLike<number>, params?: Params, options?: CallOptions): Stream;
  chat(messages: Message[], params?: Params, options?: CallOptions): Stream;
  /** Answers an OpenAI body with the JSON that the server would send. */
  complete(
    endpoint: 'completions' | 'chatCompletions' | 'tokenize' | 'detokenize',
    body: object,
    options?: CallOptions,
  ): Stream;
  tokenize(text: string, addSpecialTokens?: boolean): number[];
  detokenize(tokens: ArrayLike<number>, skipSpecialTokens?: boolean): string;
  /** The prompt of a conversation, as the model's template writes it. */
  renderChat(messages: Message[]): string;
  /** Serves the engine over HTTP with OpenAI's API. Close the server before the engine. */
  serve(options?: Record<string, unknown>): Server;
  /** The most used counters at this moment. */
  stats(): Stats;
  /** Counters in Prometheus' text format. */
  metrics(): string;
  info(): Info;
  /** Throws where the engine takes no more requests. */
  checkHealth(): void;
  /** Takes no more requests, gives those that run some time, and ends the rest. */
  shutdown(timeoutMs?: number): Promise<void>;
  /** Ends all requests and frees the engine; streams can be read to their end. */
  close(): void;
}
