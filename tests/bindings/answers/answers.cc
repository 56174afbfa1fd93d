// As answers.c, through the C++ layer.
#include "answers.h"

#include <iostream>
#include <pagedllm.hpp>

static pagedllm::Stream ask(pagedllm::Engine &engine, std::string_view kind, const char *text,
                            const char *params) {
    if (kind == "generate") return engine.generate(text, params);
    return engine.complete(kind == "chat" ? PAGEDLLM_ENDPOINT_CHAT_COMPLETIONS
                                          : PAGEDLLM_ENDPOINT_COMPLETIONS,
                           text);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    pagedllm::Engine engine{argv[1], argv[2]};
    char line[4096], *text;
    while (next_question(line, sizeof line, &text)) {
        auto stream = ask(engine, line, text, argv[3]);
        bool has_tokens = false;
        for (const auto &event : stream) {
            if (event.kind() == PAGEDLLM_EVENT_JSON) std::cout << event.text() << '\n';
            for (auto token = event.tokens_begin(); token != event.tokens_end(); token++) {
                std::cout << *token << ' ';
                has_tokens = true;
            }
        }
        std::cout << (has_tokens ? "\n\n" : "\n");
    }
}
