/* C08: two copies of the library in one process, all symbols shared, each with an engine. */
#include "support.h"

#include <dlfcn.h>

#define LOAD(name) __typeof__(&name) name##_ = (__typeof__(&name))dlsym(library, #name); CHECK(name##_)

static void *use(const char *path, const char *model, pagedllm_engine **engine) {
    static const uint32_t prompt[] = {264};
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    CHECK(library);
    LOAD(pagedllm_engine_open);
    LOAD(pagedllm_generate);
    LOAD(pagedllm_stream_next);
    LOAD(pagedllm_stream_free);
    LOAD(pagedllm_event_free);
    pagedllm_engine_options options;
    pagedllm_request request = tokens_request(prompt, 1, "{\"max_tokens\": 3}");
    pagedllm_stream *stream = NULL;
    const pagedllm_event *event;
    int events = 0;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model = model;
    options.model_len = strlen(model);
    options.options = TINY_OPTIONS;
    options.options_len = strlen(TINY_OPTIONS);
    CHECK(pagedllm_engine_open_(&options, engine, NULL) == PAGEDLLM_OK);
    CHECK(pagedllm_generate_(*engine, &request, NULL, &stream, NULL) == PAGEDLLM_OK);
    while (pagedllm_stream_next_(stream, PAGEDLLM_FOREVER, &event, NULL) == PAGEDLLM_OK) {
        events++;
        pagedllm_event_free_(event);
    }
    CHECK(events > 0);
    CHECK(pagedllm_stream_free_(stream) == PAGEDLLM_OK);
    return library;
}

static void let_go(void *library, pagedllm_engine *engine) {
    LOAD(pagedllm_engine_free);
    CHECK(pagedllm_engine_free_(engine) == PAGEDLLM_OK);
    CHECK(dlclose(library) == 0);
}

int main(int argc, char **argv) {
    pagedllm_engine *first = NULL, *second = NULL;
    CHECK(argc == 4);
    void *one = use(argv[2], argv[1], &first);
    void *two = use(argv[3], argv[1], &second);
    CHECK(one != two && dlsym(one, "pagedllm_generate") != dlsym(two, "pagedllm_generate"));
    let_go(one, first);
    let_go(two, second);
    return 0;
}
