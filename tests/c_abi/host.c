/* What a host may rely on: its process is left alone, its memory is its own, its callbacks have a
 * known life. */
#include "support.h"

#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

extern char **environ;

static const uint32_t PROMPT[] = {264};
static const uint32_t GOLDEN[] = {271, 312, 153, 231, 149, 307, 134, 172};
#define EIGHT "{\"max_tokens\": 8, \"temperature\": 0, \"ignore_eos\": true}"

enum { SIGNALS = 65 };

/* C09: what belongs to the whole process. */
struct process {
    struct sigaction actions[SIGNALS];
    sigset_t blocked;
    struct rlimit limits[RLIM_NLIMITS];
    char environment[65536];
    char folder[4096];
    char locale[256];
    int rounding;
    unsigned sse;
};

static void look(struct process *process) {
    memset(process, 0, sizeof *process);
    for (int s = 1; s < SIGNALS; s++) sigaction(s, NULL, &process->actions[s]);
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &process->blocked) == 0);
    for (int l = 0; l < RLIM_NLIMITS; l++) getrlimit(l, &process->limits[l]);
    size_t used = 0;
    for (char **variable = environ; *variable; variable++) {
        size_t len = strlen(*variable) + 1;
        CHECK(used + len < sizeof process->environment);
        memcpy(process->environment + used, *variable, len);
        used += len;
    }
    CHECK(getcwd(process->folder, sizeof process->folder));
    snprintf(process->locale, sizeof process->locale, "%s", setlocale(LC_ALL, NULL));
    process->rounding = fegetround();
#ifdef __SSE__
    process->sse = __builtin_ia32_stmxcsr() & 0xffc0; /* without the flags of past operations */
#endif
}

/* C13: nothing that was passed in is looked at after the call. */
static void inputs_are_the_callers_again(pagedllm_engine *engine) {
    uint32_t *tokens = malloc(sizeof PROMPT);
    char *params = strdup(EIGHT);
    pagedllm_stream *stream = NULL;
    const pagedllm_event *event;
    size_t count = 0;
    memcpy(tokens, PROMPT, sizeof PROMPT);
    pagedllm_request *request = malloc(sizeof *request);
    *request = tokens_request(tokens, 1, params);
    request->tag = UINT64_MAX;
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_generate(engine, request, NULL, &stream, NULL));
    memset(tokens, 0xff, sizeof PROMPT);
    memset(params, 0xff, strlen(params));
    memset(request, 0xff, sizeof *request);
    free(tokens);
    free(params);
    free(request);
    while (pagedllm_stream_next(stream, PAGEDLLM_FOREVER, &event, NULL) == PAGEDLLM_OK) {
        CHECK(event->tag == UINT64_MAX);
        for (size_t i = 0; i < event->tokens_len; i++) CHECK(event->tokens[i] == GOLDEN[count++]);
        pagedllm_event_free(event);
    }
    CHECK(count == 8);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(stream));
}

/* C03, C05: each engine has a log of its own, in whole lines, that ends when it is freed. */
struct log {
    const char *model;
    pagedllm_queue *queue;
    int is_open;
    int lines;
};

static void take_line(void *data, uint32_t level, const char *target, size_t target_len,
                      const char *message, size_t message_len) {
    struct log *log = data;
    CHECK(__atomic_load_n(&log->is_open, __ATOMIC_ACQUIRE));
    CHECK(level >= PAGEDLLM_LOG_ERROR && level <= PAGEDLLM_LOG_TRACE);
    CHECK(target_len > 0 && message_len > 0 && !memchr(message, '\n', message_len));
    CHECK(strncmp(target, "pagedllm", 8) == 0);
    /* A callback frees nothing. */
    CHECK_STATUS(PAGEDLLM_BUSY, pagedllm_queue_free(log->queue));
    __atomic_add_fetch(&log->lines, 1, __ATOMIC_RELAXED);
}

static pagedllm_engine *open_logged(struct log *log) {
    pagedllm_engine_options options;
    pagedllm_engine *engine = NULL;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model = log->model;
    options.model_len = strlen(log->model);
    options.options = TINY_OPTIONS;
    options.options_len = strlen(TINY_OPTIONS);
    options.log = take_line;
    options.log_data = log;
    options.log_level = PAGEDLLM_LOG_TRACE;
    __atomic_store_n(&log->is_open, 1, __ATOMIC_RELEASE);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_open(&options, &engine, NULL));
    return engine;
}

static void free_logged(struct log *log, pagedllm_engine *engine) {
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_free(engine));
    __atomic_store_n(&log->is_open, 0, __ATOMIC_RELEASE);
}

static void *open_log_and_free(void *data) {
    struct log *log = data;
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_new(&log->queue, NULL));
    for (int round = 0; round < 10; round++) {
        pagedllm_engine *engine = open_logged(log);
        pagedllm_stream *stream = start(engine, NULL, 0, LONG_ANSWER);
        const pagedllm_event *event;
        CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_next(stream, PAGEDLLM_FOREVER, &event, NULL));
        pagedllm_event_free(event);
        free_logged(log, engine);
        CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(stream));
    }
    CHECK(log->lines > 0);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_free(log->queue));
    return NULL;
}

static void logs_are_of_one_engine(const char *model) {
    struct log logs[4];
    pthread_t threads[4];
    memset(logs, 0, sizeof logs);
    for (int i = 0; i < 4; i++) {
        logs[i].model = model;
        CHECK(pthread_create(&threads[i], NULL, open_log_and_free, &logs[i]) == 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

/* C06: what another call uses is not freed. */
static void *drain_engine(void *engine) {
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_shutdown(engine, 600000, NULL));
    return NULL;
}

static void a_handle_in_use_is_not_freed(const char *model) {
    enum { STREAMS = 500 };
    pagedllm_engine *engine = open_tiny(model);
    pagedllm_stream *streams[STREAMS];
    pthread_t thread;
    for (int i = 0; i < STREAMS; i++) streams[i] = start(engine, NULL, 0, LONG_ANSWER);
    CHECK(pthread_create(&thread, NULL, drain_engine, engine) == 0);
    while (pagedllm_engine_health(engine, NULL) == PAGEDLLM_OK) sched_yield();
    CHECK_STATUS(PAGEDLLM_BUSY, pagedllm_engine_free(engine));
    for (int i = 0; i < STREAMS; i++) CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(streams[i]));
    pthread_join(thread, NULL);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_free(engine));
}

/* A server on a unix socket, and a client of it that has sent a request. */
struct site {
    char folder[32];
    struct sockaddr_un at;
    pagedllm_server *server;
};

static void serve(struct site *site, pagedllm_engine *engine) {
    char options[256];
    memset(site, 0, sizeof *site);
    strcpy(site->folder, "/tmp/pagedllm-XXXXXX");
    CHECK(mkdtemp(site->folder));
    site->at.sun_family = AF_UNIX;
    snprintf(site->at.sun_path, sizeof site->at.sun_path, "%s/socket", site->folder);
    snprintf(options, sizeof options, "{\"uds\": \"%s\", \"http-threads\": 1}", site->at.sun_path);
    CHECK_STATUS(PAGEDLLM_OK,
                 pagedllm_server_start(engine, options, strlen(options), &site->server, NULL));
}

static int ask(struct site *site, const char *head, const char *body) {
    char request[512];
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    int len = snprintf(request, sizeof request,
                       "%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                       "Content-Length: %zu\r\n\r\n%s", head, strlen(body), body);
    CHECK(client >= 0 && connect(client, (struct sockaddr *)&site->at, sizeof site->at) == 0);
    CHECK(send(client, request, len, MSG_NOSIGNAL) == len);
    return client;
}

static void close_site(struct site *site) {
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_server_stop(site->server, 60000, NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_server_free(site->server));
    CHECK(rmdir(site->folder) == 0);
}

/* C09: a client that is gone is no signal to the host. On a unix socket the first write shows. */
static void clients_that_hang_up_do_no_harm(pagedllm_engine *engine) {
    static const char body[] = "{\"prompt\": [264], \"max_tokens\": 400, \"ignore_eos\": true, "
                               "\"temperature\": 0, \"stream\": true}";
    struct site site;
    serve(&site, engine);
    for (int round = 0; round < 200; round++) {
        char answer[64];
        int client = ask(&site, "POST /v1/completions", body);
        if (round % 2) CHECK(recv(client, answer, sizeof answer, 0) > 0);
        CHECK(close(client) == 0);
    }
    close_site(&site);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_health(engine, NULL));
}

/* C03: the log ends with the handle of its engine, also where a server outlives that. */
static void a_server_that_is_left_logs_nothing(const char *model) {
    struct log log = {.model = model};
    struct site site;
    char answer[64];
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_new(&log.queue, NULL));
    pagedllm_engine *engine = open_logged(&log);
    serve(&site, engine);
    int client = ask(&site, "GET /health", "");
    CHECK(recv(client, answer, sizeof answer, 0) > 0 && close(client) == 0);
    CHECK(__atomic_load_n(&log.lines, __ATOMIC_RELAXED) > 0);
    free_logged(&log, engine);
    client = ask(&site, "GET /health", "");
    CHECK(recv(client, answer, sizeof answer, 0) > 0 && close(client) == 0);
    close_site(&site);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_free(log.queue));
}

int main(int argc, char **argv) {
    static struct process before, after;
    if (argc == 3) { /* as the tool that looks for races runs it */
        logs_are_of_one_engine(argv[1]);
        return 0;
    }
    CHECK(argc == 2);
    look(&before);
    CHECK(before.actions[SIGPIPE].sa_handler == SIG_DFL);
    pagedllm_engine *engine = open_tiny(argv[1]);
    inputs_are_the_callers_again(engine);
    clients_that_hang_up_do_no_harm(engine);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_free(engine));
    logs_are_of_one_engine(argv[1]);
    a_server_that_is_left_logs_nothing(argv[1]);
    a_handle_in_use_is_not_freed(argv[1]);
    look(&after);
    for (int s = 1; s < SIGNALS; s++)
        CHECK(before.actions[s].sa_handler == after.actions[s].sa_handler);
    CHECK(memcmp(&before.blocked, &after.blocked, sizeof before.blocked) == 0);
    CHECK(memcmp(before.limits, after.limits, sizeof before.limits) == 0);
    CHECK(memcmp(before.environment, after.environment, sizeof before.environment) == 0);
    CHECK(strcmp(before.folder, after.folder) == 0);
    CHECK(strcmp(before.locale, after.locale) == 0);
    CHECK(before.rounding == after.rounding && before.sse == after.sse);
    return 0;
}
