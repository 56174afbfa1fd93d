/* Answers as the model generates, until Ctrl-C:
   ./chat MODEL '[{"role": "user", "content": "What is gravity?"}]' */
#include <pagedllm.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t interrupted;
static void interrupt(int number) { interrupted = number; }
static void check(pagedllm_status status, const pagedllm_error **error) {
    if (status < PAGEDLLM_INVALID_ARGUMENT) return;
    fprintf(stderr, "%s\n", (*error)->message);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 3) return fputs("usage: chat MODEL MESSAGES\n", stderr), 2;
    const char *model = argv[1], *chat = argv[2], *params = "{\"max_tokens\": 200}";
    signal(SIGINT, interrupt);
    const pagedllm_error *error;
    pagedllm_engine *engine;
    pagedllm_engine_options options = {.struct_size = sizeof options, .model = model, .model_len = strlen(model)};
    check(pagedllm_engine_open(&options, &engine, &error), &error);
    pagedllm_stream *stream;
    pagedllm_request request = {.struct_size = sizeof request, .chat = chat, .chat_len = strlen(chat),
                                .params = params, .params_len = strlen(params)};
    check(pagedllm_generate(engine, &request, NULL, &stream, &error), &error);
    const pagedllm_event *event;
    while (pagedllm_stream_next(stream, PAGEDLLM_FOREVER, &event, NULL) == PAGEDLLM_OK) {
        printf("%s%s", event->text, event->finish_reason == PAGEDLLM_FINISH_CANCELLED ? " [cancelled]" : "");
        fflush(stdout);
        pagedllm_event_free(event);
        if (interrupted) pagedllm_stream_cancel(stream, NULL);
    }
    puts("");
    pagedllm_stream_free(stream);
    pagedllm_engine_free(engine);
}
