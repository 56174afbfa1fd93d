/* Each call once, as it is meant, against the golden tokens of the tiny model. */
#include "support.h"

#include <poll.h>
#include <signal.h>

static const uint32_t PROMPT[] = {264};
static const uint32_t GOLDEN[] = {271, 312, 153, 231, 149, 307, 134, 172};
#define GOLDEN_LEN (sizeof GOLDEN / sizeof *GOLDEN)
#define EIGHT "{\"max_tokens\": 8, \"temperature\": 0, \"ignore_eos\": true, \"logprobs\": 2}"

static int log_lines;

static void count_line(void *data, uint32_t level, const char *target, size_t target_len,
                       const char *message, size_t message_len) {
    CHECK(level >= PAGEDLLM_LOG_ERROR && level <= PAGEDLLM_LOG_TRACE);
    CHECK(target_len > 0 && message_len > 0 && target && message);
    __atomic_add_fetch((int *)data, 1, __ATOMIC_RELAXED);
}

static int32_t count_progress(void *data, uint64_t done, uint64_t total) {
    CHECK(done <= total);
    return ++*(int *)data > 0 ? 0 : 1;
}

static int32_t cancel_load(void *data, uint64_t done, uint64_t total) {
    (void)data, (void)done, (void)total;
    return 1;
}

static void generate_gives_the_golden_tokens(pagedllm_engine *engine) {
    pagedllm_request request = tokens_request(PROMPT, 1, EIGHT);
    pagedllm_stream *stream = NULL;
    const pagedllm_event *event = NULL;
    uint32_t got[64];
    size_t count = 0;
    int finished = 0;
    request.tag = 77;
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_generate(engine, &request, NULL, &stream, NULL));
    while (pagedllm_stream_next(stream, PAGEDLLM_FOREVER, &event, NULL) == PAGEDLLM_OK) {
        CHECK(event->struct_size == sizeof *event && event->tag == 77 && event->choice == 0);
        CHECK(event->text[event->text_len] == 0);
        if (event->kind == PAGEDLLM_EVENT_TEXT) {
            for (size_t i = 0; i < event->tokens_len; i++) {
                CHECK(event->logprobs[i] <= 0.0f);
                got[count++] = event->tokens[i];
            }
            if (event->tokens_len > 0) {
                CHECK(event->alternatives_ends[event->tokens_len - 1] == 2 * event->tokens_len);
                CHECK(event->alternatives[0].logprob == event->logprobs[0]);
            }
        }
        if (event->kind == PAGEDLLM_EVENT_FINISHED) {
            finished = 1;
            CHECK(event->finish_reason == PAGEDLLM_FINISH_LENGTH && event->output_tokens == 8);
            CHECK(event->prompt_tokens == 1 && event->stop == -1);
        }
        pagedllm_event_free(event);
    }
    CHECK(finished && count == GOLDEN_LEN && memcmp(got, GOLDEN, sizeof GOLDEN) == 0);
    CHECK_STATUS(PAGEDLLM_END, pagedllm_stream_next(stream, 0, &event, NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(stream));
}

static void text_goes_both_ways(pagedllm_engine *engine) {
    const char text[] = "a\0b";
    const pagedllm_tokens *tokens = NULL;
    const pagedllm_text *back = NULL, *prompt = NULL;
    const char *chat = "[{\"role\": \"user\", \"content\": \"hi\"}]";
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_tokenize(engine, text, 3, 0, &tokens, NULL));
    CHECK_STATUS(PAGEDLLM_OK,
                 pagedllm_detokenize(engine, tokens->data, tokens->len, 0, &back, NULL));
    CHECK(back->len == 3 && memcmp(back->data, text, 3) == 0 && back->data[3] == 0);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_render_chat(engine, chat, strlen(chat), &prompt, NULL));
    CHECK(strcmp(prompt->data, "<|user|>hi<|end|><|assistant|>") == 0);
    pagedllm_tokens_free(tokens);
    pagedllm_text_free(back);
    pagedllm_text_free(prompt);
}

static void chat_and_text_are_prompts(pagedllm_engine *engine) {
    const char *params = "{\"max_tokens\": 4, \"temperature\": 0}";
    pagedllm_request request = tokens_request(NULL, 0, params);
    pagedllm_stream *stream = NULL;
    request.text = "hello";
    request.text_len = 5;
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_generate(engine, &request, NULL, &stream, NULL));
    drain(stream);
    pagedllm_stream_free(stream);
    request.text = NULL;
    request.text_len = 0;
    request.chat = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}";
    request.chat_len = strlen(request.chat);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_generate(engine, &request, NULL, &stream, NULL));
    drain(stream);
    pagedllm_stream_free(stream);
}

static void openai_bodies_are_answered(pagedllm_engine *engine) {
    const char *bodies[] = {
        "{\"prompt\": [264], \"max_tokens\": 3, \"temperature\": 0}",
        "{\"prompt\": [264], \"max_tokens\": 3, \"temperature\": 0, \"stream\": true}"};
    const char *last[] = {"{\"id\":\"cmpl-", "[DONE]"};
    for (int i = 0; i < 2; i++) {
        pagedllm_stream *stream = NULL;
        const pagedllm_event *event;
        char start[16] = "";
        CHECK_STATUS(PAGEDLLM_OK, pagedllm_complete(engine, PAGEDLLM_ENDPOINT_COMPLETIONS,
                                                    bodies[i], strlen(bodies[i]), 0, NULL,
                                                    &stream, NULL));
        while (pagedllm_stream_next(stream, PAGEDLLM_FOREVER, &event, NULL) == PAGEDLLM_OK) {
            CHECK(event->kind == PAGEDLLM_EVENT_JSON);
            snprintf(start, sizeof start, "%s", event->text);
            pagedllm_event_free(event);
        }
        CHECK(strncmp(start, last[i], strlen(last[i])) == 0);
        CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(stream));
    }
}

static void one_queue_serves_many_streams(pagedllm_engine *engine) {
    enum { STREAMS = 100 };
    pagedllm_queue *queue = NULL;
    pagedllm_stream *streams[STREAMS];
    uint32_t next[STREAMS] = {0};
    int ended = 0, fd = -1;
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_new(&queue, NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_fd(queue, &fd, NULL));
    struct pollfd readable = {fd, POLLIN, 0};
    CHECK(poll(&readable, 1, 0) == 0);
    for (uint64_t i = 0; i < STREAMS; i++) streams[i] = start(engine, queue, i, EIGHT);
    while (ended < STREAMS) {
        const pagedllm_event *events[7];
        size_t count = 0;
        CHECK(poll(&readable, 1, 60000) == 1);
        pagedllm_status status = pagedllm_queue_poll(queue, 0, events, 7, &count, NULL);
        if (status == PAGEDLLM_TIMED_OUT) continue;
        CHECK_STATUS(PAGEDLLM_OK, status);
        for (size_t i = 0; i < count; i++) {
            const pagedllm_event *event = events[i];
            for (size_t t = 0; t < event->tokens_len; t++)
                CHECK(event->tokens[t] == GOLDEN[next[event->tag]++]);
            if (event->kind == PAGEDLLM_EVENT_END) {
                ended++;
                CHECK(next[event->tag] == 8 && event->output_tokens == 8);
                CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(streams[event->tag]));
            }
            pagedllm_event_free(event);
        }
    }
    const pagedllm_event *event;
    size_t count = 99;
    CHECK_STATUS(PAGEDLLM_TIMED_OUT, pagedllm_queue_poll(queue, 5, &event, 1, &count, NULL));
    CHECK(count == 99 && poll(&readable, 1, 0) == 0);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_interrupt(queue, NULL));
    CHECK(poll(&readable, 1, 0) == 1);
    CHECK_STATUS(PAGEDLLM_INTERRUPTED, pagedllm_queue_poll(queue, PAGEDLLM_FOREVER, &event, 1,
                                                           &count, NULL));
    CHECK(poll(&readable, 1, 0) == 0);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_free(queue));
}

static void cancels_and_deadlines_end_streams(pagedllm_engine *engine) {
    pagedllm_stream *stream = start(engine, NULL, 0, LONG_ANSWER);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_cancel(stream, NULL));
    CHECK(drain(stream) == PAGEDLLM_FINISH_CANCELLED);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_cancel(stream, NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(stream));
    pagedllm_request request = tokens_request(PROMPT, 1, LONG_ANSWER);
    request.timeout_ms = 1;
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_generate(engine, &request, NULL, &stream, NULL));
    CHECK(drain(stream) == PAGEDLLM_FINISH_DEADLINE);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(stream));
}

static void reports_say_something(pagedllm_engine *engine) {
    const pagedllm_text *text;
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_info(engine, &text, NULL));
    CHECK(strstr(text->data, "\"vocab_size\":320"));
    pagedllm_text_free(text);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_metrics(engine, PAGEDLLM_METRICS_JSON, &text, NULL));
    CHECK(strstr(text->data, "\"generation_tokens_total\":"));
    pagedllm_text_free(text);
    CHECK_STATUS(PAGEDLLM_OK,
                 pagedllm_engine_metrics(engine, PAGEDLLM_METRICS_PROMETHEUS, &text, NULL));
    CHECK(strstr(text->data, "vllm:num_requests_running{model_name=\"llama\""));
    pagedllm_text_free(text);
}

static void a_server_runs_inside(pagedllm_engine *engine) {
    const char *options = "{\"host\": \"127.0.0.1\", \"port\": 0, \"http-threads\": 1}";
    const pagedllm_text *address;
    pagedllm_server *server = NULL;
    CHECK_STATUS(PAGEDLLM_OK,
                 pagedllm_server_start(engine, options, strlen(options), &server, NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_server_address(server, &address, NULL));
    CHECK(strncmp(address->data, "127.0.0.1:", 10) == 0);
    pagedllm_text_free(address);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_server_stop(server, 1000, NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_server_free(server));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_health(engine, NULL));
}

int main(int argc, char **argv) {
    struct sigaction before[32], after;
    uint32_t major = 0, minor = 99;
    pagedllm_engine *engine = NULL;
    pagedllm_engine_options options;
    int steps = 0;
    CHECK(argc == 2);
    for (int s = 1; s < 32; s++) sigaction(s, NULL, &before[s]);
    pagedllm_abi_version(&major, &minor);
    CHECK(major == PAGEDLLM_ABI_MAJOR && minor == PAGEDLLM_ABI_MINOR);
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model = argv[1];
    options.model_len = strlen(argv[1]);
    options.options = TINY_OPTIONS;
    options.options_len = strlen(TINY_OPTIONS);
    options.log = count_line;
    options.log_data = &log_lines;
    options.log_level = PAGEDLLM_LOG_TRACE;
    options.progress = cancel_load;
    CHECK_STATUS(PAGEDLLM_LOAD_CANCELLED, pagedllm_engine_open(&options, &engine, NULL));
    CHECK(engine == NULL);
    options.progress = count_progress;
    options.progress_data = &steps;
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_open(&options, &engine, NULL));
    CHECK(steps > 0);
    generate_gives_the_golden_tokens(engine);
    text_goes_both_ways(engine);
    chat_and_text_are_prompts(engine);
    openai_bodies_are_answered(engine);
    one_queue_serves_many_streams(engine);
    cancels_and_deadlines_end_streams(engine);
    reports_say_something(engine);
    a_server_runs_inside(engine);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_shutdown(engine, 1000, NULL));
    CHECK_STATUS(PAGEDLLM_SHUTTING_DOWN, pagedllm_engine_health(engine, NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_free(engine));
    for (int s = 1; s < 32; s++) {
        sigaction(s, NULL, &after);
        CHECK(before[s].sa_handler == after.sa_handler);
    }
    return 0;
}
