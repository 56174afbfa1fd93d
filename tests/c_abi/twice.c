/* C10: handles and records that are freed twice, as no caller may. The memory is still mapped and
 * not used again here, so the poisoned header is seen. Not for sanitizers, which see it first. */
#include "support.h"

int main(int argc, char **argv) {
    const pagedllm_event *event = NULL;
    pagedllm_queue *queue = NULL;
    CHECK(argc == 2);
    pagedllm_engine *engine = open_tiny(argv[1]);
    pagedllm_stream *stream = start(engine, NULL, 0, "{\"max_tokens\": 1}");
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_next(stream, PAGEDLLM_FOREVER, &event, NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_new(&queue, NULL));
    pagedllm_event_free(event);
    pagedllm_event_free(event);
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_stream_free(stream));
    CHECK_STATUS(PAGEDLLM_INVALID_HANDLE, pagedllm_stream_free(stream));
    CHECK_STATUS(PAGEDLLM_INVALID_HANDLE, pagedllm_stream_cancel(stream, NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_queue_free(queue));
    CHECK_STATUS(PAGEDLLM_INVALID_HANDLE, pagedllm_queue_free(queue));
    CHECK_STATUS(PAGEDLLM_INVALID_HANDLE, pagedllm_queue_interrupt(queue, NULL));
    CHECK_STATUS(PAGEDLLM_OK, pagedllm_engine_free(engine));
    CHECK_STATUS(PAGEDLLM_INVALID_HANDLE, pagedllm_engine_free(engine));
    CHECK_STATUS(PAGEDLLM_INVALID_HANDLE, pagedllm_engine_health(engine, NULL));
    return 0;
}
