// Streams an answer: ./stream MODEL 'Tell me a story'
const std = @import("std");
const c = @import("pagedllm");

fn fail(err: [*c]const c.pagedllm_error) c_int {
    std.debug.print("{s}\n", .{err.*.message[0..err.*.message_len]});
    c.pagedllm_error_free(err);
    return 1;
}

pub export fn main(argc: c_int, argv: [*]const [*:0]const u8) c_int {
    if (argc != 3) return 2;
    const model = std.mem.span(argv[1]);
    const prompt = std.mem.span(argv[2]);
    const params = "{\"max_tokens\": 200}";
    var err: [*c]const c.pagedllm_error = null;

    const options = c.pagedllm_engine_options{ .model = model.ptr, .model_len = model.len };
    var engine: ?*c.pagedllm_engine = null;
    if (c.pagedllm_engine_open(&options, &engine, &err) != c.PAGEDLLM_OK) return fail(err);
    defer _ = c.pagedllm_engine_free(engine);

    const request = c.pagedllm_request{
        .text = prompt.ptr,
        .text_len = prompt.len,
        .params = params,
        .params_len = params.len,
    };
    var stream: ?*c.pagedllm_stream = null;
    if (c.pagedllm_generate(engine, &request, null, &stream, &err) != c.PAGEDLLM_OK) return fail(err);
    defer _ = c.pagedllm_stream_free(stream);

    var event: [*c]const c.pagedllm_event = null;
    while (c.pagedllm_stream_next(stream, c.PAGEDLLM_FOREVER, &event, null) == c.PAGEDLLM_OK) {
        _ = std.c.write(1, event.*.text, event.*.text_len);
        c.pagedllm_event_free(event);
    }
    return 0;
}
