/* Answers questions through the C interface: answers MODEL OPTIONS PARAMS < questions
 *
 * A question is a line: "generate", "completions" or "chat", a tab, and a prompt or a body. Its
 * answer is a line of token ids, or a line for each piece of JSON; then comes an empty line. */
#include "answers.h"

#include <pagedllm.h>
#include <stdlib.h>

static void check(pagedllm_status status, const pagedllm_error **error) {
    if (status < PAGEDLLM_INVALID_ARGUMENT) return;
    fprintf(stderr, "%s\n", (*error)->message);
    exit(1);
}

static pagedllm_stream *ask(pagedllm_engine *engine, const char *kind, const char *text,
                            const char *params) {
    const pagedllm_error *error;
    pagedllm_stream *stream;
    if (strcmp(kind, "generate") == 0) {
        pagedllm_request request = {.struct_size = sizeof request, .text = text};
        request.text_len = strlen(text);
        request.params = params;
        request.params_len = strlen(params);
        check(pagedllm_generate(engine, &request, NULL, &stream, &error), &error);
    } else {
        int is_chat = strcmp(kind, "chat") == 0;
        check(pagedllm_complete(engine,
                                is_chat ? PAGEDLLM_ENDPOINT_CHAT_COMPLETIONS
                                        : PAGEDLLM_ENDPOINT_COMPLETIONS,
                                text, strlen(text), 0, NULL, &stream, &error),
              &error);
    }
    return stream;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    const pagedllm_error *error;
    pagedllm_engine *engine;
    pagedllm_engine_options options = {.struct_size = sizeof options};
    options.model = argv[1];
    options.model_len = strlen(argv[1]);
    options.options = argv[2];
    options.options_len = strlen(argv[2]);
    check(pagedllm_engine_open(&options, &engine, &error), &error);
    char line[4096], *text;
    while (next_question(line, sizeof line, &text)) {
        pagedllm_stream *stream = ask(engine, line, text, argv[3]);
        const pagedllm_event *event;
        while (pagedllm_stream_next(stream, PAGEDLLM_FOREVER, &event, NULL) == PAGEDLLM_OK) {
            if (event->kind == PAGEDLLM_EVENT_JSON) puts(event->text);
            for (size_t i = 0; i < event->tokens_len; i++) printf("%u ", event->tokens[i]);
            pagedllm_event_free(event);
        }
        puts(strcmp(line, "generate") == 0 ? "\n" : "");
        pagedllm_stream_free(stream);
    }
    pagedllm_engine_free(engine);
}
