// Streams an answer: ./stream MODEL 'Tell me a story'
#include "pagedllm.hpp"

#include <iostream>

int main(int argc, char **argv) {
    if (argc != 3) return std::cerr << "usage: stream MODEL PROMPT\n", 2;
    try {
        pagedllm::Engine engine{argv[1]};
        for (const auto &event : engine.generate(argv[2], R"({"max_tokens": 200})"))
            std::cout << event.text() << std::flush;
        std::cout << '\n';
    } catch (const pagedllm::Error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
