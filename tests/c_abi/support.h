/* What the C tests share: checks that say where they fail, and one way to open the tiny model. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include "pagedllm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);      \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

#define CHECK_STATUS(expected, call)                                             \
    do {                                                                         \
        pagedllm_status status_ = (call);                                        \
        if (status_ != (expected)) {                                             \
            fprintf(stderr, "%s:%d: %s, not %s: %s\n", __FILE__, __LINE__,       \
                    pagedllm_status_name(status_),                               \
                    pagedllm_status_name(expected), #call);                      \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

#define TINY_OPTIONS                                                             \
    "{\"device\": \"cpu\", \"dtype\": \"float32\", \"threads\": 1, "             \
    "\"kv-cache-memory-bytes\": \"8M\", \"max-num-seqs\": 64}"

static inline pagedllm_engine *open_tiny(const char *model) {
    pagedllm_engine_options options;
    pagedllm_engine *engine = NULL;
    const pagedllm_error *error = NULL;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model = model;
    options.model_len = strlen(model);
    options.options = TINY_OPTIONS;
    options.options_len = strlen(TINY_OPTIONS);
    if (pagedllm_engine_open(&options, &engine, &error) != PAGEDLLM_OK) {
        fprintf(stderr, "open: %s\n", error->message);
        exit(1);
    }
    return engine;
}

/* Parameters of a long answer: greedy, not ended by the model itself. */
#define LONG_ANSWER "{\"max_tokens\": 400, \"temperature\": 0, \"ignore_eos\": true}"

static inline pagedllm_request tokens_request(const uint32_t *tokens, size_t len,
                                              const char *params) {
    pagedllm_request request;
    memset(&request, 0, sizeof request);
    request.struct_size = sizeof request;
    request.tokens = tokens;
    request.tokens_len = len;
    request.params = params;
    request.params_len = params ? strlen(params) : 0;
    return request;
}

static inline pagedllm_stream *start(pagedllm_engine *engine, pagedllm_queue *queue, uint64_t tag,
                                     const char *params) {
    static const uint32_t prompt[] = {264};
    pagedllm_request request = tokens_request(prompt, 1, params);
    pagedllm_stream *stream = NULL;
    request.tag = tag;
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_generate(engine, &request, queue, &stream, NULL));
    return stream;
}

/* Reads a stream to its end and returns the finish reason of its last choice. */
static inline uint32_t drain(pagedllm_stream *stream) {
    uint32_t reason = PAGEDLLM_FINISH_NONE;
    const pagedllm_event *event;
    pagedllm_status status;
    while ((status = pagedllm_stream_next(stream, 60000, &event, NULL)) == PAGEDLLM_OK) {
        if (event->kind == PAGEDLLM_EVENT_FINISHED) reason = event->finish_reason;
        pagedllm_event_free(event);
    }
    CHECK_STATUS(PAGEDLLM_END, status);
    return reason;
}

#endif
