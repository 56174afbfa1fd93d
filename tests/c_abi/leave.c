/* C02: closes the library and ends while an engine runs and nothing is freed. */
#include "support.h"

#include <dlfcn.h>

/* Here a leak checker finds what is meant to be left. */
pagedllm_engine *engine;
pagedllm_stream *streams[8];
pagedllm_queue *queue;

int main(int argc, char **argv) {
    CHECK(argc == 3);
    void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    engine = open_tiny(argv[1]);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_new(&queue, NULL));
    for (int i = 0; i < 8; i++) streams[i] = start(engine, i % 2 ? queue : NULL, 0, LONG_ANSWER);
    CHECK(dlclose(library) == 0);
    return 0;
}
