/* The C interface of pagedllm. Generated from crates/ffi; docs/c-api.md is its contract.
 *
 * Every function may be called from any thread. Functions that can fail return a status and, on
 * failure, write an error object to their last argument unless that is NULL; their other
 * out-parameters are written on success only. What the library hands out is freed with the free
 * function of its type. Texts are UTF-8 with a length in bytes.
 */

#ifndef PAGEDLLM_H
#define PAGEDLLM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 First number of the version of this interface: it changes when old callers would break.
 */
#define PAGEDLLM_ABI_MAJOR 1

/*
 Second number of the version of this interface: it grows when something is added.
 */
#define PAGEDLLM_ABI_MINOR 1

/*
 Endpoint: /v1/completions.
 */
#define PAGEDLLM_ENDPOINT_COMPLETIONS 1

/*
 Endpoint: /v1/chat/completions.
 */
#define PAGEDLLM_ENDPOINT_CHAT_COMPLETIONS 2

/*
 Endpoint: /tokenize.
 */
#define PAGEDLLM_ENDPOINT_TOKENIZE 3

/*
 Endpoint: /detokenize.
 */
#define PAGEDLLM_ENDPOINT_DETOKENIZE 4

/*
 Event: new text, new tokens, or both, of one choice.
 */
#define PAGEDLLM_EVENT_TEXT 1

/*
 Event: a choice ended. finish_reason says why, output_tokens counts the choice's tokens.
 */
#define PAGEDLLM_EVENT_FINISHED 2

/*
 Event: the prompt was computed; tokens, logprobs and alternatives are those of the prompt.
 */
#define PAGEDLLM_EVENT_PROMPT 3

/*
 Event: text is a piece of JSON that an OpenAI client would get: the whole answer, or with
 "stream": true one chunk, and "[DONE]" last.
 */
#define PAGEDLLM_EVENT_JSON 4

/*
 Event: an OpenAI answer failed; status says why, text is the JSON that a client would get.
 */
#define PAGEDLLM_EVENT_FAILED 5

/*
 Event, of completion queues only: the stream has ended. The counts are the whole request's.
 */
#define PAGEDLLM_EVENT_END 6

/*
 Finish reason: the choice has not finished.
 */
#define PAGEDLLM_FINISH_NONE 0

/*
 Finish reason: max_tokens or the context is used up.
 */
#define PAGEDLLM_FINISH_LENGTH 1

/*
 Finish reason: an end-of-sequence or stop token; stop is its id.
 */
#define PAGEDLLM_FINISH_STOP_TOKEN 2

/*
 Finish reason: a stop string; stop is its index in the request.
 */
#define PAGEDLLM_FINISH_STOP_STRING 3

/*
 Finish reason: cancelled.
 */
#define PAGEDLLM_FINISH_CANCELLED 4

/*
 Finish reason: the request's time was up.
 */
#define PAGEDLLM_FINISH_DEADLINE 5

/*
 Finish reason: a fault of this request or of the device; text says which.
 */
#define PAGEDLLM_FINISH_FAULT 6

/*
 Log level: something failed.
 */
#define PAGEDLLM_LOG_ERROR 1

/*
 Log level: something is odd.
 */
#define PAGEDLLM_LOG_WARN 2

/*
 Log level: what an operator wants to know.
 */
#define PAGEDLLM_LOG_INFO 3

/*
 Log level: what a developer wants to know.
 */
#define PAGEDLLM_LOG_DEBUG 4

/*
 Log level: everything.
 */
#define PAGEDLLM_LOG_TRACE 5

/*
 A timeout that never passes.
 */
#define PAGEDLLM_FOREVER UINT32_MAX

/*
 Metrics as Prometheus' text format.
 */
#define PAGEDLLM_METRICS_PROMETHEUS 1

/*
 Metrics as a JSON object of the most used counters.
 */
#define PAGEDLLM_METRICS_JSON 2

/*
 A model that answers: usable from all threads at once.
 */
typedef struct pagedllm_engine pagedllm_engine;

/*
 A completion queue: events of all streams that were made with it.
 */
typedef struct pagedllm_queue pagedllm_queue;

/*
 An HTTP server over one engine.
 */
typedef struct pagedllm_server pagedllm_server;

/*
 The answer to one request.
 */
typedef struct pagedllm_stream pagedllm_stream;

/*
 Result of a call: one of the PAGEDLLM_* codes below. Zero is success, 1 to 15 are no failures
 and come without an error object, anything from 16 on is a failure. New codes may appear.
 */
typedef int32_t pagedllm_status;

/*
 Receives a line of the log: a level (PAGEDLLM_LOG_*), the part that speaks, and the line. The
 texts are UTF-8 without NUL at their ends and live during the call. It may run on any thread,
 on several at once, and must neither free a handle nor throw.
 */
typedef void (*pagedllm_log_callback)(void *user_data,
                                      uint32_t level,
                                      const char *target,
                                      size_t target_len,
                                      const char *message,
                                      size_t message_len);

/*
 Is told how many bytes of the weights are loaded, on the thread that opens the engine. Returns
 0 to go on; anything else cancels.
 */
typedef int32_t (*pagedllm_progress_callback)(void *user_data,
                                              uint64_t done_bytes,
                                              uint64_t total_bytes);

/*
 What to open. All bytes that are not set must be 0.
 */
typedef struct pagedllm_engine_options {
    /*
     sizeof(pagedllm_engine_options), as the caller compiled it.
     */
    size_t struct_size;
    /*
     UTF-8 path of a GGUF file, or of a directory with config.json.
     */
    const char *model;
    /*
     Bytes of model.
     */
    size_t model_len;
    /*
     JSON object of options, named as on the command line: {"max-num-seqs": 8}. May be NULL.
     */
    const char *options;
    /*
     Bytes of options.
     */
    size_t options_len;
    /*
     Receives the engine's log; NULL drops it. Not called after pagedllm_engine_free returned.
     */
    pagedllm_log_callback log;
    /*
     Passed to log as it is.
     */
    void *log_data;
    /*
     The finest level that is logged (PAGEDLLM_LOG_*); 0 is PAGEDLLM_LOG_INFO.
     */
    uint32_t log_level;
    /*
     Must be 0.
     */
    uint32_t reserved;
    /*
     Is told how the load goes, and can cancel it; may be NULL.
     */
    pagedllm_progress_callback progress;
    /*
     Passed to progress as it is.
     */
    void *progress_data;
} pagedllm_engine_options;

/*
 Why a call failed. Made by the library, freed with pagedllm_error_free. Both texts end with a
 NUL that their lengths do not count.
 */
typedef struct pagedllm_error {
    /*
     Size of this struct in the library; fields may be added at its end.
     */
    size_t struct_size;
    /*
     The status that the call returned.
     */
    pagedllm_status status;
    /*
     When trying again makes sense, in milliseconds; 0 if that is unknown.
     */
    uint32_t retry_after_ms;
    /*
     What is wrong and what would be right.
     */
    const char *message;
    /*
     Bytes of message.
     */
    size_t message_len;
    /*
     The option, field or argument to blame; empty where there is none.
     */
    const char *param;
    /*
     Bytes of param.
     */
    size_t param_len;
} pagedllm_error;

/*
 A request. All bytes that are not set must be 0. Exactly one of text, tokens and chat is set.
 */
typedef struct pagedllm_request {
    /*
     sizeof(pagedllm_request), as the caller compiled it.
     */
    size_t struct_size;
    /*
     A prompt as UTF-8.
     */
    const char *text;
    /*
     Bytes of text.
     */
    size_t text_len;
    /*
     A prompt as token ids.
     */
    const uint32_t *tokens;
    /*
     Number of tokens.
     */
    size_t tokens_len;
    /*
     A conversation as JSON: a list of messages, or an object with "messages" and for example
     "tools".
     */
    const char *chat;
    /*
     Bytes of chat.
     */
    size_t chat_len;
    /*
     Parameters as a JSON object, named as in OpenAI's API and vLLM's: {"max_tokens": 16,
     "temperature": 0}. Unknown ones are errors. May be NULL.
     */
    const char *params;
    /*
     Bytes of params.
     */
    size_t params_len;
    /*
     Comes back in each event; any value.
     */
    uint64_t tag;
    /*
     The request ends with PAGEDLLM_FINISH_DEADLINE after this time; 0 sets no limit.
     */
    uint32_t timeout_ms;
    /*
     Must be 0.
     */
    uint32_t reserved;
} pagedllm_request;

/*
 A token and the natural logarithm of its probability.
 */
typedef struct pagedllm_logprob {
    /*
     The token.
     */
    uint32_t token;
    /*
     Finite or negative infinity.
     */
    float logprob;
} pagedllm_logprob;

/*
 Something that happened to a request. Made by the library, freed with pagedllm_event_free;
 everything in it lives until then.
 */
typedef struct pagedllm_event {
    /*
     Size of this struct in the library; fields may be added at its end.
     */
    size_t struct_size;
    /*
     The request's tag.
     */
    uint64_t tag;
    /*
     PAGEDLLM_EVENT_*; kinds that a caller does not know are to be skipped.
     */
    uint32_t kind;
    /*
     Number of the choice, from 0 up to n.
     */
    uint32_t choice;
    /*
     PAGEDLLM_FINISH_*.
     */
    uint32_t finish_reason;
    /*
     Status of a failed answer, else PAGEDLLM_OK.
     */
    pagedllm_status status;
    /*
     Text to append; never ends inside of a character, and a NUL follows it.
     */
    const char *text;
    /*
     Bytes of text.
     */
    size_t text_len;
    /*
     The tokens of this event.
     */
    const uint32_t *tokens;
    /*
     Number of tokens.
     */
    size_t tokens_len;
    /*
     Log-probability of each token (NaN where there is none), or NULL where not asked for.
     */
    const float *logprobs;
    /*
     The most likely tokens at each place, best first, or NULL where not asked for: those of
     token i are alternatives[alternatives_ends[i - 1] .. alternatives_ends[i]].
     */
    const struct pagedllm_logprob *alternatives;
    /*
     See alternatives; tokens_len entries.
     */
    const size_t *alternatives_ends;
    /*
     The stop token or the index of the stop string, else -1.
     */
    int64_t stop;
    /*
     Tokens of the prompt.
     */
    uint64_t prompt_tokens;
    /*
     Of these, found in the prefix cache; known at the end.
     */
    uint64_t cached_tokens;
    /*
     Tokens generated.
     */
    uint64_t output_tokens;
    /*
     Sum of the log-probabilities of a finished choice, or NaN.
     */
    double cumulative_logprob;
} pagedllm_event;

/*
 A text that the library made, freed with pagedllm_text_free. A NUL follows its bytes.
 */
typedef struct pagedllm_text {
    /*
     UTF-8.
     */
    const char *data;
    /*
     Bytes of data.
     */
    size_t len;
} pagedllm_text;

/*
 Token ids that the library made, freed with pagedllm_tokens_free.
 */
typedef struct pagedllm_tokens {
    /*
     The ids.
     */
    const uint32_t *data;
    /*
     How many.
     */
    size_t len;
} pagedllm_tokens;

/*
 How far a load is, for pagedllm_progress_to_memory. All bytes are 0 at first.
 */
typedef struct pagedllm_load_state {
    /*
     Bytes of the weights that are loaded.
     */
    uint64_t done_bytes;
    /*
     Bytes of the weights; 0 until that is known.
     */
    uint64_t total_bytes;
    /*
     The host sets it to 1 to cancel.
     */
    uint32_t cancel;
    /*
     Must be 0.
     */
    uint32_t reserved;
} pagedllm_load_state;

/*
 Done.
 */
#define PAGEDLLM_OK 0

/*
 Nothing happened in the time given.
 */
#define PAGEDLLM_TIMED_OUT 1

/*
 The stream has ended and everything of it was read.
 */
#define PAGEDLLM_END 2

/*
 pagedllm_queue_interrupt was called.
 */
#define PAGEDLLM_INTERRUPTED 3

/*
 A pointer that must not be NULL is NULL, or an argument has no meaning.
 */
#define PAGEDLLM_INVALID_ARGUMENT 16

/*
 A pointer is no handle of the kind asked for, or its handle was freed.
 */
#define PAGEDLLM_INVALID_HANDLE 17

/*
 struct_size is smaller than the first version of the struct, or says that fields are set
 which this library does not know.
 */
#define PAGEDLLM_INVALID_STRUCT_SIZE 18

/*
 A text is not UTF-8.
 */
#define PAGEDLLM_INVALID_UTF8 19

/*
 An option is unknown or its value is wrong; the error's param names it.
 */
#define PAGEDLLM_INVALID_OPTION 20

/*
 A request is wrong; the error's param names the field.
 */
#define PAGEDLLM_INVALID_REQUEST 21

/*
 Prompt and output do not fit the context.
 */
#define PAGEDLLM_CONTEXT_LENGTH 22

/*
 The request names a model that is not served.
 */
#define PAGEDLLM_MODEL_NOT_FOUND 23

/*
 The model could not be opened.
 */
#define PAGEDLLM_MODEL_ERROR 24

/*
 The progress callback cancelled the load.
 */
#define PAGEDLLM_LOAD_CANCELLED 25

/*
 The queue of requests is full; the error's retry_after_ms says when a place is likely.
 */
#define PAGEDLLM_QUEUE_FULL 26

/*
 The engine takes no more requests.
 */
#define PAGEDLLM_SHUTTING_DOWN 27

/*
 The engine failed and must be opened again.
 */
#define PAGEDLLM_ENGINE_FAILED 28

/*
 The handle is in use by another call, or a callback tried to free something.
 */
#define PAGEDLLM_BUSY 29

/*
 The handle was made before fork, by the parent.
 */
#define PAGEDLLM_USED_AFTER_FORK 30

/*
 The server can't listen there.
 */
#define PAGEDLLM_LISTEN_FAILED 31

/*
 The system has no threads, memory or file descriptors left.
 */
#define PAGEDLLM_OUT_OF_RESOURCES 32

/*
 The answer was cancelled before its end.
 */
#define PAGEDLLM_CANCELLED 33

/*
 The request's time was up before the answer ended.
 */
#define PAGEDLLM_DEADLINE 34

/*
 This build or platform can't do that.
 */
#define PAGEDLLM_UNSUPPORTED 35

/*
 A fault of this library; please report it.
 */
#define PAGEDLLM_INTERNAL 36

/*
 Writes the version of the interface that this library has. A program compiled with the header
 of version (major, minor) works with a library of the same major and at least its minor.
 Either pointer may be NULL.
 */
void pagedllm_abi_version(uint32_t *major, uint32_t *minor);

/*
 Name of a status code, such as "PAGEDLLM_QUEUE_FULL". The text ends with NUL and lives for
 ever; unknown codes are "PAGEDLLM_UNKNOWN".
 */
const char *pagedllm_status_name(pagedllm_status status);

/*
 A pagedllm_log_callback that writes each line to a file descriptor, as
 {"level":"info","target":"pagedllm","message":"..."} and a newline, 4096 bytes at most. log_data
 is the descriptor's number, cast to a pointer. It stays the caller's, and open until
 pagedllm_engine_free returned. A line that a socket or a pipe that does not block has no room
 for is dropped.
 */
void pagedllm_log_to_fd(void *user_data,
                        uint32_t level,
                        const char *target,
                        size_t target_len,
                        const char *message,
                        size_t message_len);

/*
 A pagedllm_progress_callback that keeps a pagedllm_load_state up to date, which
 progress_data points to. The host looks at it from another thread and may cancel.
 */
int32_t pagedllm_progress_to_memory(void *user_data, uint64_t done_bytes, uint64_t total_bytes);

/*
 Opens an engine; blocks until the model is loaded.
 */
pagedllm_status pagedllm_engine_open(const struct pagedllm_engine_options *options,
                                     struct pagedllm_engine **out,
                                     const struct pagedllm_error **error);

/*
 Queues a request and hands out its stream. Never waits for the engine. With a queue (which may
 be NULL) the events go there, tagged, and the stream serves to cancel and to free.
 */
pagedllm_status pagedllm_generate(const struct pagedllm_engine *engine,
                                  const struct pagedllm_request *request,
                                  const struct pagedllm_queue *queue,
                                  struct pagedllm_stream **out,
                                  const struct pagedllm_error **error);

/*
 Answers the body of an OpenAI request (PAGEDLLM_ENDPOINT_*) with the bytes that the server
 would send, as events of kind PAGEDLLM_EVENT_JSON. Otherwise like pagedllm_generate.
 */
pagedllm_status pagedllm_complete(const struct pagedllm_engine *engine,
                                  uint32_t endpoint,
                                  const char *body,
                                  size_t body_len,
                                  uint64_t tag,
                                  const struct pagedllm_queue *queue,
                                  struct pagedllm_stream **out,
                                  const struct pagedllm_error **error);

/*
 Whether the engine takes requests: PAGEDLLM_OK, PAGEDLLM_SHUTTING_DOWN or
 PAGEDLLM_ENGINE_FAILED.
 */
pagedllm_status pagedllm_engine_health(const struct pagedllm_engine *engine,
                                       const struct pagedllm_error **error);

/*
 Takes no more requests, waits for timeout_ms at most until those that run have ended, and ends
 the rest. Other calls go on meanwhile.
 */
pagedllm_status pagedllm_engine_shutdown(const struct pagedllm_engine *engine,
                                         uint32_t timeout_ms,
                                         const struct pagedllm_error **error);

/*
 Shuts an engine down at once and frees it. Its requests end as cancelled; their streams can
 still be read, and are freed on their own. NULL is fine. PAGEDLLM_BUSY while another call uses
 the engine.
 */
pagedllm_status pagedllm_engine_free(struct pagedllm_engine *engine);

/*
 Frees an error. NULL is fine.
 */
void pagedllm_error_free(const struct pagedllm_error *error);

/*
 Frees an event. NULL is fine.
 */
void pagedllm_event_free(const struct pagedllm_event *event);

/*
 Makes a completion queue.
 */
pagedllm_status pagedllm_queue_new(struct pagedllm_queue **out,
                                   const struct pagedllm_error **error);

/*
 Waits until there are events, for timeout_ms at most (PAGEDLLM_FOREVER waits without limit),
 and writes up to `capacity` of them to `events` and their number to `count`. Each is freed
 with pagedllm_event_free. The events of one stream come in their order if one thread polls.
 Returns PAGEDLLM_OK with one event or more, PAGEDLLM_TIMED_OUT or PAGEDLLM_INTERRUPTED.
 */
pagedllm_status pagedllm_queue_poll(const struct pagedllm_queue *queue,
                                    uint32_t timeout_ms,
                                    const struct pagedllm_event **events,
                                    size_t capacity,
                                    size_t *count,
                                    const struct pagedllm_error **error);

/*
 Makes one poll that waits, or else the next one that finds nothing, return
 PAGEDLLM_INTERRUPTED.
 */
pagedllm_status pagedllm_queue_interrupt(const struct pagedllm_queue *queue,
                                         const struct pagedllm_error **error);

/*
 The file descriptor of a queue, for poll, epoll and the like: readable while a poll would not
 wait. It stays the queue's: not to be read, written or closed.
 */
pagedllm_status pagedllm_queue_fd(const struct pagedllm_queue *queue,
                                  int *out,
                                  const struct pagedllm_error **error);

/*
 Frees a queue; its streams live on, and nobody reads them any more. NULL is fine.
 PAGEDLLM_BUSY while another thread polls.
 */
pagedllm_status pagedllm_queue_free(struct pagedllm_queue *queue);

/*
 Serves the engine over HTTP with OpenAI's API, on threads of the library. The options are a
 JSON object, named as on the command line ({"host": "127.0.0.1", "port": 0}); NULL takes those
 that the engine was opened with. No signal handler is set: the host decides when to stop.
 */
pagedllm_status pagedllm_server_start(const struct pagedllm_engine *engine,
                                      const char *options,
                                      size_t options_len,
                                      struct pagedllm_server **out,
                                      const struct pagedllm_error **error);

/*
 Where the server listens, as host:port; empty on a unix socket.
 */
pagedllm_status pagedllm_server_address(const struct pagedllm_server *server,
                                        const struct pagedllm_text **out,
                                        const struct pagedllm_error **error);

/*
 Accepts no more connections and waits for timeout_ms at most until those there are have
 closed. The engine runs on.
 */
pagedllm_status pagedllm_server_stop(const struct pagedllm_server *server,
                                     uint32_t timeout_ms,
                                     const struct pagedllm_error **error);

/*
 Stops a server at once and frees it; connections that are left are cut. NULL is fine.
 PAGEDLLM_BUSY while another call uses the server.
 */
pagedllm_status pagedllm_server_free(struct pagedllm_server *server);

/*
 Waits for the next event, for timeout_ms at most (0 does not wait, PAGEDLLM_FOREVER waits
 without limit). The event is freed with pagedllm_event_free. Returns PAGEDLLM_OK with an
 event, PAGEDLLM_TIMED_OUT, or PAGEDLLM_END after the last. Several threads may wait; each
 event goes to one of them. Not for streams of a completion queue.
 */
pagedllm_status pagedllm_stream_next(const struct pagedllm_stream *stream,
                                     uint32_t timeout_ms,
                                     const struct pagedllm_event **out,
                                     const struct pagedllm_error **error);

/*
 Ends the request soon. Its choices finish with PAGEDLLM_FINISH_CANCELLED; an OpenAI answer
 just ends. Events that came before can still be read. Cancelling twice, or after the end, does
 nothing.
 */
pagedllm_status pagedllm_stream_cancel(const struct pagedllm_stream *stream,
                                       const struct pagedllm_error **error);

/*
 Frees a stream and cancels what has not ended. NULL is fine. PAGEDLLM_BUSY while another
 thread waits in pagedllm_stream_next: cancel first, and free when that has returned.
 */
pagedllm_status pagedllm_stream_free(struct pagedllm_stream *stream);

/*
 Frees a text. NULL is fine.
 */
void pagedllm_text_free(const struct pagedllm_text *text);

/*
 Frees token ids. NULL is fine.
 */
void pagedllm_tokens_free(const struct pagedllm_tokens *tokens);

/*
 Token ids of a text. add_special_tokens other than 0 adds what the model wants before a
 prompt.
 */
pagedllm_status pagedllm_tokenize(const struct pagedllm_engine *engine,
                                  const char *text,
                                  size_t text_len,
                                  uint32_t add_special_tokens,
                                  const struct pagedllm_tokens **out,
                                  const struct pagedllm_error **error);

/*
 Text of token ids. skip_special_tokens other than 0 leaves out the model's markers.
 */
pagedllm_status pagedllm_detokenize(const struct pagedllm_engine *engine,
                                    const uint32_t *tokens,
                                    size_t tokens_len,
                                    uint32_t skip_special_tokens,
                                    const struct pagedllm_text **out,
                                    const struct pagedllm_error **error);

/*
 The prompt of a conversation (JSON, as in pagedllm_request), as the model's template writes it.
 */
pagedllm_status pagedllm_render_chat(const struct pagedllm_engine *engine,
                                     const char *chat,
                                     size_t chat_len,
                                     const struct pagedllm_text **out,
                                     const struct pagedllm_error **error);

/*
 What was loaded, as a JSON object; names may be added to it.
 */
pagedllm_status pagedllm_engine_info(const struct pagedllm_engine *engine,
                                     const struct pagedllm_text **out,
                                     const struct pagedllm_error **error);

/*
 Counters of the engine at this moment, in a format (PAGEDLLM_METRICS_*).
 */
pagedllm_status pagedllm_engine_metrics(const struct pagedllm_engine *engine,
                                        uint32_t format,
                                        const struct pagedllm_text **out,
                                        const struct pagedllm_error **error);

#ifdef __cplusplus
}
#endif

#endif /* PAGEDLLM_H */
