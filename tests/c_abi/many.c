/* Ten thousand streams at once on one completion queue, read by one thread. */
#include "support.h"

enum { STREAMS = 10000, TOKENS = 3 };
#define OPTIONS                                                                   \
    "{\"device\": \"cpu\", \"dtype\": \"float32\", \"threads\": 1, "              \
    "\"kv-cache-memory-bytes\": \"8M\", \"max-num-queued-reqs\": 10000}"

int main(int argc, char **argv) {
    static pagedllm_stream *streams[STREAMS];
    static uint32_t tokens[STREAMS];
    const pagedllm_event *events[256];
    pagedllm_engine_options options;
    pagedllm_engine *engine = NULL;
    pagedllm_queue *queue = NULL;
    int ended = 0;
    CHECK(argc == 2);
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model = argv[1];
    options.model_len = strlen(argv[1]);
    options.options = OPTIONS;
    options.options_len = strlen(OPTIONS);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_open(&options, &engine, NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_new(&queue, NULL));
    for (uint64_t i = 0; i < STREAMS; i++)
        streams[i] = start(engine, queue, i,
                           "{\"max_tokens\": 3, \"temperature\": 0, \"ignore_eos\": true}");
    while (ended < STREAMS) {
        size_t count = 0;
        CHECK_STATUS(PAGEDLLM_OK,
                     pagedllm_queue_poll(queue, PAGEDLLM_FOREVER, events, 256, &count, NULL));
        for (size_t i = 0; i < count; i++) {
            const pagedllm_event *event = events[i];
            tokens[event->tag] += event->tokens_len;
            if (event->kind == PAGEDLLM_EVENT_END) {
                ended++;
                CHECK(tokens[event->tag] == TOKENS);
                CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(streams[event->tag]));
            }
            pagedllm_event_free(event);
        }
    }
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_free(queue));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_free(engine));
    return 0;
}
