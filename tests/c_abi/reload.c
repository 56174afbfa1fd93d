/* Loads and unloads the library a hundred times, with an engine in between, as plugins do. */
#include "support.h"

#include <dlfcn.h>

#define LOAD(name) __typeof__(&name) name##_ = (__typeof__(&name))dlsym(library, #name); CHECK(name##_)

int main(int argc, char **argv) {
    CHECK(argc == 3);
    for (int round = 0; round < 100; round++) {
        void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
        CHECK(library);
        LOAD(pagedllm_abi_version);
        LOAD(pagedllm_engine_open);
        LOAD(pagedllm_engine_free);
        LOAD(pagedllm_generate);
        LOAD(pagedllm_stream_next);
        LOAD(pagedllm_stream_free);
        LOAD(pagedllm_event_free);
        uint32_t major = 0, minor = 0;
        pagedllm_abi_version_(&major, &minor);
        CHECK(major == PAGEDLLM_ABI_MAJOR);
        if (round % 10 == 0) {
            static const uint32_t prompt[] = {264};
            pagedllm_request request = tokens_request(prompt, 1, "{\"max_tokens\": 3}");
            pagedllm_engine_options options;
            pagedllm_engine *engine = NULL;
            pagedllm_stream *stream = NULL;
            const pagedllm_event *event;
            memset(&options, 0, sizeof options);
            options.struct_size = sizeof options;
            options.model = argv[1];
            options.model_len = strlen(argv[1]);
            options.options = TINY_OPTIONS;
            options.options_len = strlen(TINY_OPTIONS);
            CHECK(pagedllm_engine_open_(&options, &engine, NULL) == PAGEDLLM_OK);
            CHECK(pagedllm_generate_(engine, &request, NULL, &stream, NULL) == PAGEDLLM_OK);
            while (pagedllm_stream_next_(stream, PAGEDLLM_FOREVER, &event, NULL) == PAGEDLLM_OK)
                pagedllm_event_free_(event);
            CHECK(pagedllm_stream_free_(stream) == PAGEDLLM_OK);
            CHECK(pagedllm_engine_free_(engine) == PAGEDLLM_OK);
        }
        CHECK(dlclose(library) == 0);
    }
    return 0;
}
