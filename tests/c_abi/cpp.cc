// The C++ layer: ranges, moves, exceptions and results.
#include "pagedllm.hpp"

#include <iostream>
#include <type_traits>

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::cerr << __FILE__ << ":" << __LINE__ << ": " #condition "\n";    \
            std::exit(1);                                                        \
        }                                                                        \
    } while (0)

using namespace pagedllm;

static_assert(!std::is_copy_constructible_v<Engine> && std::is_move_constructible_v<Engine>);
static_assert(!std::is_copy_constructible_v<Stream> && std::is_move_constructible_v<Stream>);

static const char *OPTIONS = R"({"device": "cpu", "dtype": "float32", "threads": 1,
    "kv-cache-memory-bytes": "8M"})";
static const char *EIGHT = R"({"max_tokens": 8, "temperature": 0, "ignore_eos": true})";
static const char *LONG = R"({"max_tokens": 400, "temperature": 0, "ignore_eos": true})";

static const std::vector<std::uint32_t> PROMPT{264};

int main(int, char **argv) {
    CHECK(!Engine::try_open("nowhere"));
    try {
        Engine nowhere{"nowhere"};
        CHECK(false);
    } catch (const Error &error) {
        CHECK(error.status() == PAGEDLLM_MODEL_ERROR && error.what()[0]);
    }
    Engine opened{argv[1], OPTIONS};
    Engine engine = std::move(opened);

    std::vector<std::uint32_t> tokens;
    for (const Event &event : engine.generate(PROMPT, EIGHT))
        tokens.insert(tokens.end(), event.tokens_begin(), event.tokens_end());
    CHECK((tokens == std::vector<std::uint32_t>{271, 312, 153, 231, 149, 307, 134, 172}));

    Stream cancelled = engine.generate(PROMPT, LONG);
    cancelled.cancel();
    std::uint32_t reason = 0;
    for (const Event &event : cancelled) reason = event.finish_reason();
    CHECK(reason == PAGEDLLM_FINISH_CANCELLED);

    try {
        engine.generate("hello", R"({"temperature": 9})");
        CHECK(false);
    } catch (const Error &error) {
        CHECK(error.status() == PAGEDLLM_INVALID_REQUEST && error.param() == "temperature");
    }

    Queue queue;
    Submit submit;
    submit.queue = &queue;
    std::vector<Stream> streams;
    for (submit.tag = 0; submit.tag < 5; submit.tag++)
        streams.push_back(engine.generate(PROMPT, EIGHT, submit));
    for (int ended = 0; ended < 5;)
        for (const Event &event : queue.poll()) ended += event.kind() == PAGEDLLM_EVENT_END;

    CHECK(engine.detokenize(engine.tokenize("hey")) == "hey");
    CHECK(engine.render_chat(R"([{"role": "user", "content": "hi"}])").find("hi") !=
          std::string::npos);
    CHECK(engine.health() == PAGEDLLM_OK && !engine.info().empty() && !engine.metrics().empty());
    Server server = engine.serve(R"({"host": "127.0.0.1", "port": 0})");
    CHECK(server.address().rfind("127.0.0.1:", 0) == 0);
}
