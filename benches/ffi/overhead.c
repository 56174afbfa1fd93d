/* Time of events through the C library: overhead MODEL OPTIONS STREAMS TOKENS
 * One stream is read by pagedllm_stream_next, more of them through one completion queue. */
#include "pagedllm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static void check(pagedllm_status status, const char *what) {
    if (status == PAGEDLLM_OK) return;
    fprintf(stderr, "%s: %s\n", what, pagedllm_status_name(status));
    exit(1);
}

static double wall(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static double cpu(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec +
           (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static size_t read_stream(pagedllm_stream *stream) {
    const pagedllm_event *event;
    size_t tokens = 0;
    while (pagedllm_stream_next(stream, PAGEDLLM_FOREVER, &event, NULL) == PAGEDLLM_OK) {
        tokens += event->tokens_len;
        pagedllm_event_free(event);
    }
    return tokens;
}

static size_t read_queue(pagedllm_queue *queue, size_t streams) {
    const pagedllm_event *events[256];
    size_t count, tokens = 0;
    while (streams > 0) {
        check(pagedllm_queue_poll(queue, PAGEDLLM_FOREVER, events, 256, &count, NULL), "poll");
        for (size_t i = 0; i < count; i++) {
            tokens += events[i]->tokens_len;
            streams -= events[i]->kind == PAGEDLLM_EVENT_END;
            pagedllm_event_free(events[i]);
        }
    }
    return tokens;
}

int main(int argc, char **argv) {
    static const uint32_t prompt[] = {1};
    if (argc != 5) return fprintf(stderr, "usage: overhead MODEL OPTIONS STREAMS TOKENS\n"), 2;
    size_t count = strtoul(argv[3], NULL, 10), tokens = strtoul(argv[4], NULL, 10);
    char params[128];
    snprintf(params, sizeof params, "{\"max_tokens\": %zu, \"temperature\": 0, \"ignore_eos\": true}",
             tokens);
    pagedllm_engine_options options = {.struct_size = sizeof options,
                                       .model = argv[1], .model_len = strlen(argv[1]),
                                       .options = argv[2], .options_len = strlen(argv[2])};
    pagedllm_request request = {.struct_size = sizeof request, .tokens = prompt, .tokens_len = 1,
                                .params = params, .params_len = strlen(params)};
    pagedllm_engine *engine;
    pagedllm_queue *queue = NULL;
    pagedllm_stream **streams = calloc(count, sizeof *streams);
    check(pagedllm_engine_open(&options, &engine, NULL), "open");
    if (count > 1) check(pagedllm_queue_new(&queue, NULL), "queue");

    double wall_start = wall(), cpu_start = cpu();
    for (size_t i = 0; i < count; i++)
        check(pagedllm_generate(engine, &request, queue, &streams[i], NULL), "generate");
    size_t seen = queue ? read_queue(queue, count) : read_stream(streams[0]);
    printf("{\"tokens\": %zu, \"wall_s\": %.6f, \"cpu_s\": %.6f}\n", seen, wall() - wall_start,
           cpu() - cpu_start);

    for (size_t i = 0; i < count; i++) pagedllm_stream_free(streams[i]);
    pagedllm_queue_free(queue);
    pagedllm_engine_free(engine);
    return seen == count * tokens ? 0 : 1;
}
