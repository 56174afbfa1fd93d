// Answers as the model generates, until Ctrl-C:
// ./chat MODEL '[{"role": "user", "content": "What is gravity?"}]'
#include <csignal>
#include <iostream>
#include <pagedllm.hpp>

static volatile std::sig_atomic_t interrupted = 0;

int main(int argc, char **argv) {
    if (argc != 3) return std::cerr << "usage: chat MODEL MESSAGES\n", 2;
    std::signal(SIGINT, [](int) { interrupted = 1; });
    try {
        pagedllm::Engine engine{argv[1]};
        auto stream = engine.chat(argv[2], R"({"max_tokens": 200})");
        for (const auto &event : stream) {
            std::cout << event.text() << std::flush;
            if (event.finish_reason() == PAGEDLLM_FINISH_CANCELLED) std::cout << " [cancelled]";
            if (interrupted) stream.cancel();
        }
        std::cout << '\n';
    } catch (const pagedllm::Error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
