// pagedllm for C++17 and later: ownership and nothing else, over pagedllm.h.
//
// Objects are move-only and free what they hold. Calls throw pagedllm::Error; those that a caller
// may want without exceptions have a try_ form that returns a pagedllm::Result. A Stream is an
// input range of events:
//
//     pagedllm::Engine engine{"model.gguf"};
//     for (const pagedllm::Event &event : engine.generate("Hello", R"({"max_tokens": 32})"))
//         std::cout << event.text() << std::flush;

#ifndef PAGEDLLM_HPP
#define PAGEDLLM_HPP

#include "pagedllm.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace pagedllm {

// Why a call failed.
class Error : public std::runtime_error {
public:
    Error(pagedllm_status status, const pagedllm_error *error)
        : std::runtime_error(error ? std::string(error->message, error->message_len)
                                   : std::string(pagedllm_status_name(status))),
          status_(status), param_(error ? std::string(error->param, error->param_len) : ""),
          retry_after_(error ? error->retry_after_ms : 0) {
        pagedllm_error_free(error);
    }

    pagedllm_status status() const noexcept { return status_; }
    // The option, field or argument to blame; empty where there is none.
    const std::string &param() const noexcept { return param_; }
    // When trying again makes sense; zero if that is unknown.
    std::chrono::milliseconds retry_after() const noexcept { return retry_after_; }

private:
    pagedllm_status status_;
    std::string param_;
    std::chrono::milliseconds retry_after_;
};

// A value or an error.
template <class T> class Result {
public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    explicit operator bool() const noexcept { return state_.index() == 0; }
    T &operator*() & { return std::get<0>(state_); }
    T &&operator*() && { return std::get<0>(std::move(state_)); }
    T *operator->() { return &std::get<0>(state_); }
    const Error &error() const { return std::get<1>(state_); }

    // The value, or throws the error.
    T value() && {
        if (!*this) throw std::get<1>(std::move(state_));
        return std::get<0>(std::move(state_));
    }

private:
    std::variant<T, Error> state_;
};

namespace detail {

template <auto Free> struct Freer {
    template <class T> void operator()(T *pointer) const noexcept { Free(pointer); }
};
template <class T, auto Free> using Owned = std::unique_ptr<T, Freer<Free>>;

using Text = Owned<const pagedllm_text, &pagedllm_text_free>;

inline void check(pagedllm_status status, const pagedllm_error *error) {
    if (status >= PAGEDLLM_INVALID_ARGUMENT) throw Error(status, error);
}

// Calls that write a text.
template <class Call> std::string text(Call call) {
    const pagedllm_text *out = nullptr;
    const pagedllm_error *error = nullptr;
    check(call(&out, &error), error);
    Text owned(out);
    return std::string(owned->data, owned->len);
}

inline std::uint32_t milliseconds(std::optional<std::chrono::milliseconds> timeout) {
    if (!timeout) return PAGEDLLM_FOREVER;
    const auto count = timeout->count();
    if (count < 0) return 0;
    return count >= PAGEDLLM_FOREVER ? PAGEDLLM_FOREVER - 1 : static_cast<std::uint32_t>(count);
}

} // namespace detail

// Something that happened to a request.
class Event {
public:
    explicit Event(const pagedllm_event *event) : event_(event) {}

    std::uint32_t kind() const noexcept { return event_->kind; }
    std::uint64_t tag() const noexcept { return event_->tag; }
    std::uint32_t choice() const noexcept { return event_->choice; }
    std::string_view text() const noexcept { return {event_->text, event_->text_len}; }
    const std::uint32_t *tokens_begin() const noexcept { return event_->tokens; }
    const std::uint32_t *tokens_end() const noexcept { return event_->tokens + event_->tokens_len; }
    bool is_finished() const noexcept { return event_->kind == PAGEDLLM_EVENT_FINISHED; }
    std::uint32_t finish_reason() const noexcept { return event_->finish_reason; }
    // All fields.
    const pagedllm_event &raw() const noexcept { return *event_; }

private:
    detail::Owned<const pagedllm_event, &pagedllm_event_free> event_;
};

// The answer to one request; freeing it cancels. An input range of events.
class Stream {
public:
    explicit Stream(pagedllm_stream *stream) : stream_(stream) {}

    // The next event; nothing at the end.
    std::optional<Event> next() { return next_within(std::nullopt, nullptr); }

    // As next, waiting for at most `timeout`; `timed_out` says whether that passed.
    std::optional<Event> next(std::chrono::milliseconds timeout, bool &timed_out) {
        return next_within(timeout, &timed_out);
    }

    void cancel() {
        const pagedllm_error *error = nullptr;
        detail::check(pagedllm_stream_cancel(stream_.get(), &error), error);
    }

    class iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = Event;
        using difference_type = std::ptrdiff_t;
        using pointer = const Event *;
        using reference = const Event &;

        iterator() = default;
        explicit iterator(Stream *stream) : stream_(stream) { ++*this; }
        reference operator*() const { return *event_; }
        pointer operator->() const { return &*event_; }
        iterator &operator++() {
            event_ = stream_->next();
            if (!event_) stream_ = nullptr;
            return *this;
        }
        void operator++(int) { ++*this; }
        friend bool operator==(const iterator &a, const iterator &b) {
            return a.stream_ == b.stream_;
        }
        friend bool operator!=(const iterator &a, const iterator &b) { return !(a == b); }

    private:
        Stream *stream_ = nullptr;
        std::optional<Event> event_;
    };

    iterator begin() { return iterator(this); }
    iterator end() { return iterator(); }

private:
    std::optional<Event> next_within(std::optional<std::chrono::milliseconds> timeout,
                                     bool *timed_out) {
        const pagedllm_event *event = nullptr;
        const pagedllm_error *error = nullptr;
        const auto status =
            pagedllm_stream_next(stream_.get(), detail::milliseconds(timeout), &event, &error);
        detail::check(status, error);
        if (timed_out) *timed_out = status == PAGEDLLM_TIMED_OUT;
        if (status != PAGEDLLM_OK) return std::nullopt;
        return Event(event);
    }

    detail::Owned<pagedllm_stream, &pagedllm_stream_free> stream_;
};

// One place where the events of many streams arrive.
class Queue {
public:
    Queue() {
        pagedllm_queue *queue = nullptr;
        const pagedllm_error *error = nullptr;
        detail::check(pagedllm_queue_new(&queue, &error), error);
        queue_.reset(queue);
    }

    // Waits for events, for at most `timeout`; empty when that passed or at an interrupt.
    std::vector<Event> poll(std::optional<std::chrono::milliseconds> timeout = std::nullopt,
                            std::size_t capacity = 64) {
        std::vector<const pagedllm_event *> raw(capacity);
        std::size_t count = 0;
        const pagedllm_error *error = nullptr;
        const auto status = pagedllm_queue_poll(queue_.get(), detail::milliseconds(timeout),
                                                raw.data(), capacity, &count, &error);
        detail::check(status, error);
        std::vector<Event> events;
        events.reserve(count);
        for (std::size_t i = 0; i < count; i++) events.emplace_back(raw[i]);
        return events;
    }

    void interrupt() { pagedllm_queue_interrupt(queue_.get(), nullptr); }

    // Readable while a poll would not wait; stays the queue's.
    int fd() const {
        int fd = -1;
        const pagedllm_error *error = nullptr;
        detail::check(pagedllm_queue_fd(queue_.get(), &fd, &error), error);
        return fd;
    }

    const pagedllm_queue *get() const noexcept { return queue_.get(); }

private:
    detail::Owned<pagedllm_queue, &pagedllm_queue_free> queue_;
};

// An HTTP server over an engine; freeing it stops it.
class Server {
public:
    explicit Server(pagedllm_server *server) : server_(server) {}

    std::string address() const {
        return detail::text([&](auto **out, auto **error) {
            return pagedllm_server_address(server_.get(), out, error);
        });
    }

    void stop(std::chrono::milliseconds timeout) {
        const pagedllm_error *error = nullptr;
        detail::check(
            pagedllm_server_stop(server_.get(), detail::milliseconds(timeout), &error), error);
    }

private:
    detail::Owned<pagedllm_server, &pagedllm_server_free> server_;
};

// What goes with a prompt beside its parameters.
struct Submit {
    // Comes back in each event.
    std::uint64_t tag = 0;
    // The request ends after this time; zero sets no limit.
    std::chrono::milliseconds timeout{0};
    // Where the events go, in place of the stream.
    const Queue *queue = nullptr;
};

// A model that answers.
class Engine {
public:
    // Opens a model; `options` is a JSON object named as on the command line.
    explicit Engine(std::string_view model, std::string_view options = {})
        : Engine(try_open(model, options).value()) {}

    static Result<Engine> try_open(std::string_view model, std::string_view options = {}) {
        pagedllm_engine_options given{};
        given.struct_size = sizeof given;
        given.model = model.data();
        given.model_len = model.size();
        given.options = options.data();
        given.options_len = options.size();
        return try_open(given);
    }

    // With callbacks for log and progress.
    static Result<Engine> try_open(const pagedllm_engine_options &options) {
        pagedllm_engine *engine = nullptr;
        const pagedllm_error *error = nullptr;
        const auto status = pagedllm_engine_open(&options, &engine, &error);
        if (status != PAGEDLLM_OK) return Error(status, error);
        return Engine(engine);
    }

    // Continues a text. `params` is a JSON object named as in OpenAI's API.
    Stream generate(std::string_view text, std::string_view params = {}, Submit submit = {}) {
        auto request = make(params, submit);
        request.text = text.data() ? text.data() : "";
        request.text_len = text.size();
        return try_submit(request, submit.queue).value();
    }

    // Continues token ids.
    Stream generate(const std::vector<std::uint32_t> &tokens, std::string_view params = {},
                    Submit submit = {}) {
        auto request = make(params, submit);
        request.tokens = tokens.data();
        request.tokens_len = tokens.size();
        return try_submit(request, submit.queue).value();
    }

    // Answers a conversation, given as JSON.
    Stream chat(std::string_view messages, std::string_view params = {}, Submit submit = {}) {
        auto request = make(params, submit);
        request.chat = messages.data();
        request.chat_len = messages.size();
        return try_submit(request, submit.queue).value();
    }

    Result<Stream> try_submit(const pagedllm_request &request, const Queue *queue = nullptr) {
        pagedllm_stream *stream = nullptr;
        const pagedllm_error *error = nullptr;
        const auto status = pagedllm_generate(engine_.get(), &request,
                                              queue ? queue->get() : nullptr, &stream, &error);
        if (status != PAGEDLLM_OK) return Error(status, error);
        return Stream(stream);
    }

    // Answers an OpenAI body (PAGEDLLM_ENDPOINT_*) as the server would.
    Stream complete(std::uint32_t endpoint, std::string_view body, Submit submit = {}) {
        pagedllm_stream *stream = nullptr;
        const pagedllm_error *error = nullptr;
        detail::check(pagedllm_complete(engine_.get(), endpoint, body.data(), body.size(),
                                        submit.tag, submit.queue ? submit.queue->get() : nullptr,
                                        &stream, &error),
                      error);
        return Stream(stream);
    }

    std::vector<std::uint32_t> tokenize(std::string_view text, bool add_special_tokens = false) {
        const pagedllm_tokens *out = nullptr;
        const pagedllm_error *error = nullptr;
        detail::check(pagedllm_tokenize(engine_.get(), text.data(), text.size(),
                                        add_special_tokens, &out, &error),
                      error);
        detail::Owned<const pagedllm_tokens, &pagedllm_tokens_free> owned(out);
        return std::vector<std::uint32_t>(owned->data, owned->data + owned->len);
    }

    std::string detokenize(const std::vector<std::uint32_t> &tokens, bool skip_special = true) {
        return detail::text([&](auto **out, auto **error) {
            return pagedllm_detokenize(engine_.get(), tokens.data(), tokens.size(), skip_special,
                                       out, error);
        });
    }

    std::string render_chat(std::string_view messages) {
        return detail::text([&](auto **out, auto **error) {
            return pagedllm_render_chat(engine_.get(), messages.data(), messages.size(), out,
                                        error);
        });
    }

    std::string info() const {
        return detail::text([&](auto **out, auto **error) {
            return pagedllm_engine_info(engine_.get(), out, error);
        });
    }

    std::string metrics(std::uint32_t format = PAGEDLLM_METRICS_PROMETHEUS) const {
        return detail::text([&](auto **out, auto **error) {
            return pagedllm_engine_metrics(engine_.get(), format, out, error);
        });
    }

    pagedllm_status health() const { return pagedllm_engine_health(engine_.get(), nullptr); }

    // Serves the engine over HTTP; `options` as for the constructor.
    Server serve(std::string_view options = {}) {
        pagedllm_server *server = nullptr;
        const pagedllm_error *error = nullptr;
        detail::check(pagedllm_server_start(engine_.get(), options.data(), options.size(), &server,
                                            &error),
                      error);
        return Server(server);
    }

    void shutdown(std::chrono::milliseconds timeout) {
        const pagedllm_error *error = nullptr;
        detail::check(
            pagedllm_engine_shutdown(engine_.get(), detail::milliseconds(timeout), &error), error);
    }

private:
    explicit Engine(pagedllm_engine *engine) : engine_(engine) {}

    static pagedllm_request make(std::string_view params, const Submit &submit) {
        pagedllm_request request{};
        request.struct_size = sizeof request;
        request.params = params.data();
        request.params_len = params.size();
        request.tag = submit.tag;
        request.timeout_ms = detail::milliseconds(submit.timeout);
        return request;
    }

    detail::Owned<pagedllm_engine, &pagedllm_engine_free> engine_;
};

} // namespace pagedllm

#endif
