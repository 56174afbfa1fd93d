/* Everything that a caller can do wrong and that must end in a status: C01, C06, C07, C12. */
#include "support.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint32_t PROMPT[] = {264};

static void null_and_wrong_arguments(pagedllm_engine *engine, const char *model) {
    pagedllm_engine *no_engine = NULL;
    pagedllm_stream *stream = (pagedllm_stream *)0x10;
    const pagedllm_error *error = NULL;
    const pagedllm_text *text;
    const pagedllm_tokens *tokens;
    pagedllm_engine_options options;
    pagedllm_request request = tokens_request(PROMPT, 1, NULL);
    char garbage[64] = {0};

    CHECK_STATUS(PAGEDLLM_INVALID_ARGUMENT, pagedllm_engine_open(NULL, &no_engine, NULL));
    memset(&options, 0, sizeof options);
    options.struct_size = 3;
    CHECK_STATUS(PAGEDLLM_INVALID_STRUCT_SIZE, pagedllm_engine_open(&options, &no_engine, NULL));
    options.struct_size = sizeof options;
    options.model = "nowhere";
    options.model_len = 7;
    CHECK_STATUS(PAGEDLLM_MODEL_ERROR, pagedllm_engine_open(&options, &no_engine, &error));
    CHECK(error->status == PAGEDLLM_MODEL_ERROR && error->message_len == strlen(error->message));
    pagedllm_error_free(error);
    options.model = "\xff";
    options.model_len = 1;
    CHECK_STATUS(PAGEDLLM_INVALID_UTF8, pagedllm_engine_open(&options, &no_engine, NULL));
    options.model = model;
    options.model_len = strlen(model);
    options.options = "{\"max-num-seqs\": 0}";
    options.options_len = strlen(options.options);
    CHECK_STATUS(PAGEDLLM_INVALID_OPTION, pagedllm_engine_open(&options, &no_engine, &error));
    CHECK(strcmp(error->param, "max-num-seqs") == 0);
    pagedllm_error_free(error);
    CHECK(no_engine == NULL);

    CHECK_STATUS(PAGEDLLM_INVALID_ARGUMENT, pagedllm_generate(NULL, &request, NULL, &stream, NULL));
    CHECK_STATUS(PAGEDLLM_INVALID_ARGUMENT, pagedllm_generate(engine, NULL, NULL, &stream, NULL));
    CHECK_STATUS(PAGEDLLM_INVALID_ARGUMENT, pagedllm_generate(engine, &request, NULL, NULL, NULL));
    CHECK_STATUS(PAGEDLLM_INVALID_HANDLE,
                 pagedllm_generate((pagedllm_engine *)garbage, &request, NULL, &stream, NULL));
    CHECK_STATUS(PAGEDLLM_INVALID_HANDLE,
                 pagedllm_generate(engine, &request, (pagedllm_queue *)engine, &stream, NULL));
    request.text = "x";
    request.text_len = 1;
    CHECK_STATUS(PAGEDLLM_INVALID_ARGUMENT,
                 pagedllm_generate(engine, &request, NULL, &stream, NULL));
    request.text = NULL;
    request.tokens = NULL;
    CHECK_STATUS(PAGEDLLM_INVALID_ARGUMENT,
                 pagedllm_generate(engine, &request, NULL, &stream, NULL));
    static const uint32_t outside[] = {320};
    request = tokens_request(outside, 1, NULL);
    CHECK_STATUS(PAGEDLLM_INVALID_REQUEST,
                 pagedllm_generate(engine, &request, NULL, &stream, NULL));
    const char *wrong[] = {"{\"temperature\": 3}", "{\"no_such_thing\": 1}", "{", "[1]",
                           "{\"prompt\": \"x\"}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        request = tokens_request(PROMPT, 1, wrong[i]);
        CHECK_STATUS(PAGEDLLM_INVALID_REQUEST,
                     pagedllm_generate(engine, &request, NULL, &stream, NULL));
    }
    request = tokens_request(PROMPT, 1, "{\"max_tokens\": 512}");
    CHECK_STATUS(PAGEDLLM_CONTEXT_LENGTH,
                 pagedllm_generate(engine, &request, NULL, &stream, NULL));
    request = tokens_request(PROMPT, 1, "\xc3\x28");
    CHECK_STATUS(PAGEDLLM_INVALID_UTF8, pagedllm_generate(engine, &request, NULL, &stream, &error));
    CHECK(strcmp(error->param, "params") == 0);
    pagedllm_error_free(error);
    CHECK(stream == (pagedllm_stream *)0x10);

    CHECK_STATUS(PAGEDLLM_INVALID_ARGUMENT,
                 pagedllm_complete(engine, 99, "{}", 2, 0, NULL, &stream, NULL));
    CHECK_STATUS(PAGEDLLM_INVALID_REQUEST, pagedllm_complete(engine, PAGEDLLM_ENDPOINT_COMPLETIONS,
                                                             "{}", 2, 0, NULL, &stream, NULL));
    const char *other = "{\"model\": \"other\", \"prompt\": \"x\"}";
    CHECK_STATUS(PAGEDLLM_MODEL_NOT_FOUND,
                 pagedllm_complete(engine, PAGEDLLM_ENDPOINT_COMPLETIONS, other, strlen(other), 0,
                                   NULL, &stream, NULL));
    CHECK_STATUS(PAGEDLLM_INVALID_ARGUMENT, pagedllm_tokenize(engine, NULL, 1, 0, &tokens, NULL));
    CHECK_STATUS(PAGEDLLM_INVALID_ARGUMENT,
                 pagedllm_detokenize(engine, outside, 1, 0, &text, NULL));
    CHECK_STATUS(PAGEDLLM_INVALID_ARGUMENT, pagedllm_engine_metrics(engine, 9, &text, NULL));
    CHECK_STATUS(PAGEDLLM_INVALID_REQUEST, pagedllm_render_chat(engine, "[7]", 3, &text, NULL));
    CHECK(strcmp(pagedllm_status_name(12345), "PAGEDLLM_UNKNOWN") == 0);
}

/* C01: every call that takes a handle, with none and with what is none. */
static void each_call_refuses_null_and_garbage(void) {
    static uint64_t garbage[8];
    struct { void *handle; pagedllm_status status; } wrong[] = {
        {NULL, PAGEDLLM_INVALID_ARGUMENT}, {garbage, PAGEDLLM_INVALID_HANDLE},
        {(char *)garbage + 1, PAGEDLLM_INVALID_HANDLE}};
    pagedllm_request request = tokens_request(PROMPT, 1, NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        void *h = wrong[i].handle;
        pagedllm_status s = wrong[i].status;
        pagedllm_stream *stream;
        pagedllm_server *server;
        const pagedllm_tokens *tokens;
        const pagedllm_text *text;
        const pagedllm_event *event;
        const pagedllm_error *e = NULL;
        size_t count;
        int fd;
        CHECK_STATUS(s, pagedllm_generate(h, &request, NULL, &stream, &e));
        CHECK(e->status == s && strcmp(e->param, "engine") == 0);
        pagedllm_error_free(e);
        CHECK_STATUS(s, pagedllm_complete(h, 1, "{}", 2, 0, NULL, &stream, NULL));
        CHECK_STATUS(s, pagedllm_engine_health(h, NULL));
        CHECK_STATUS(s, pagedllm_engine_shutdown(h, 0, NULL));
        CHECK_STATUS(s, pagedllm_engine_info(h, &text, NULL));
        CHECK_STATUS(s, pagedllm_engine_metrics(h, PAGEDLLM_METRICS_JSON, &text, NULL));
        CHECK_STATUS(s, pagedllm_tokenize(h, "a", 1, 0, &tokens, NULL));
        CHECK_STATUS(s, pagedllm_detokenize(h, PROMPT, 1, 0, &text, NULL));
        CHECK_STATUS(s, pagedllm_render_chat(h, "[]", 2, &text, NULL));
        CHECK_STATUS(s, pagedllm_server_start(h, NULL, 0, &server, NULL));
        CHECK_STATUS(s, pagedllm_server_address(h, &text, NULL));
        CHECK_STATUS(s, pagedllm_server_stop(h, 0, NULL));
        CHECK_STATUS(s, pagedllm_queue_poll(h, 0, &event, 1, &count, NULL));
        CHECK_STATUS(s, pagedllm_queue_interrupt(h, NULL));
        CHECK_STATUS(s, pagedllm_queue_fd(h, &fd, NULL));
        CHECK_STATUS(s, pagedllm_stream_next(h, 0, &event, NULL));
        CHECK_STATUS(s, pagedllm_stream_cancel(h, NULL));
        if (!h) continue; /* Freeing nothing is fine. */
        CHECK_STATUS(s, pagedllm_engine_free(h));
        CHECK_STATUS(s, pagedllm_stream_free(h));
        CHECK_STATUS(s, pagedllm_queue_free(h));
        CHECK_STATUS(s, pagedllm_server_free(h));
    }
}

static void old_and_new_callers(pagedllm_engine *engine) {
    /* The request as the first version of the header had it, at the end of its memory. */
    size_t old = offsetof(pagedllm_request, tag);
    pagedllm_request full = tokens_request(PROMPT, 1, "{\"max_tokens\": 2}");
    pagedllm_request *request = malloc(old);
    pagedllm_stream *stream;
    full.struct_size = old;
    memcpy(request, &full, old);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_generate(engine, request, NULL, &stream, NULL));
    drain(stream);
    pagedllm_stream_free(stream);
    free(request);
    /* A later header's request: larger, with fields that are not set. */
    struct {
        pagedllm_request known;
        uint64_t later;
    } grown;
    memset(&grown, 0, sizeof grown);
    grown.known = tokens_request(PROMPT, 1, "{\"max_tokens\": 2}");
    grown.known.struct_size = sizeof grown;
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_generate(engine, &grown.known, NULL, &stream, NULL));
    drain(stream);
    pagedllm_stream_free(stream);
    grown.later = 1;
    CHECK_STATUS(PAGEDLLM_INVALID_STRUCT_SIZE,
                 pagedllm_generate(engine, &grown.known, NULL, &stream, NULL));
}

static void frees_in_any_order(const char *model) {
    pagedllm_engine *engine = open_tiny(model);
    pagedllm_queue *queue = NULL;
    const pagedllm_event *event;
    pagedllm_stream *stream = start(engine, NULL, 0, LONG_ANSWER);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_new(&queue, NULL));
    pagedllm_stream *queued = start(engine, queue, 1, LONG_ANSWER);
    CHECK_STATUS(PAGEDLLM_INVALID_ARGUMENT, pagedllm_stream_next(queued, 0, &event, NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_free(engine));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_free(queue));
    CHECK(drain(stream) == PAGEDLLM_FINISH_CANCELLED);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_cancel(queued, NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(queued));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(stream));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_free(NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_free(NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_server_free(NULL));
    pagedllm_event_free(NULL);
    pagedllm_error_free(NULL);
    pagedllm_text_free(NULL);
    pagedllm_tokens_free(NULL);
}

static void *wait_for_end(void *stream) {
    const pagedllm_event *event;
    pagedllm_status status;
    while ((status = pagedllm_stream_next(stream, PAGEDLLM_FOREVER, &event, NULL)) == PAGEDLLM_OK)
        pagedllm_event_free(event);
    CHECK_STATUS(PAGEDLLM_END, status);
    return NULL;
}

static void many_threads_on_one_stream(pagedllm_engine *engine) {
    enum { THREADS = 64 };
    pthread_t threads[THREADS];
    pagedllm_stream *stream = start(engine, NULL, 0, LONG_ANSWER);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, wait_for_end, stream) == 0);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_cancel(stream, NULL));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(stream));
}

static void *submit_and_cancel(void *engine) {
    for (int i = 0; i < 8; i++) {
        pagedllm_stream *stream = start(engine, NULL, 0, LONG_ANSWER);
        const pagedllm_event *event;
        if (i % 3 == 0 && pagedllm_stream_next(stream, 20, &event, NULL) == PAGEDLLM_OK)
            pagedllm_event_free(event);
        if (i % 2 == 0) CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_cancel(stream, NULL));
        if (i % 4 == 0) drain(stream);
        CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(stream));
    }
    return NULL;
}

static void many_threads_on_one_engine(pagedllm_engine *engine) {
    enum { THREADS = 64 };
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, submit_and_cancel, engine) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static void *poll_until_interrupted(void *queue) {
    const pagedllm_event *event;
    size_t count;
    CHECK_STATUS(PAGEDLLM_INTERRUPTED,
                 pagedllm_queue_poll(queue, PAGEDLLM_FOREVER, &event, 1, &count, NULL));
    return NULL;
}

static void an_interrupt_ends_a_poll(void) {
    pagedllm_queue *queue = NULL;
    pthread_t thread;
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_new(&queue, NULL));
    CHECK(pthread_create(&thread, NULL, poll_until_interrupted, queue) == 0);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_interrupt(queue, NULL));
    pthread_join(thread, NULL);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_free(queue));
}

static void a_forked_child_is_told(pagedllm_engine *engine) {
    pagedllm_stream *stream = start(engine, NULL, 0, "{\"max_tokens\": 4}");
    const pagedllm_event *event;
    const pagedllm_tokens *tokens;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(10);
        CHECK_STATUS(PAGEDLLM_USED_AFTER_FORK,
                     pagedllm_tokenize(engine, "a", 1, 0, &tokens, NULL));
        CHECK_STATUS(PAGEDLLM_USED_AFTER_FORK,
                     pagedllm_stream_next(stream, PAGEDLLM_FOREVER, &event, NULL));
        CHECK_STATUS(PAGEDLLM_USED_AFTER_FORK, pagedllm_stream_free(stream));
        CHECK_STATUS(PAGEDLLM_USED_AFTER_FORK, pagedllm_engine_free(engine));
        _exit(0);
    }
    int result = 0;
    CHECK(waitpid(child, &result, 0) == child && WIFEXITED(result) && WEXITSTATUS(result) == 0);
    drain(stream);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(stream));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    frees_in_any_order(argv[1]);
    pagedllm_engine *engine = open_tiny(argv[1]);
    null_and_wrong_arguments(engine, argv[1]);
    each_call_refuses_null_and_garbage();
    old_and_new_callers(engine);
    many_threads_on_one_stream(engine);
    many_threads_on_one_engine(engine);
    an_interrupt_ends_a_poll();
    a_forked_child_is_told(engine);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_free(engine));
    return 0;
}
