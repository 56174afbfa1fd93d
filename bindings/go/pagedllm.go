// Package pagedllm runs language models inside a Go program.
//
// An [Engine] owns one model. Requests give a [Stream], whose events arrive on one goroutine for
// all streams of an engine: a thousand streams cost one thread in C. Nothing of C calls into Go.
//
// The package links libpagedllm; CGO_LDFLAGS=-L<folder> says where it is. The build tag
// pagedllm_static puts the static library into the program.
package pagedllm

/*
#cgo CFLAGS: -I${SRCDIR}/../../include
#cgo !pagedllm_static LDFLAGS: -lpagedllm
#cgo pagedllm_static LDFLAGS: -l:libpagedllm.a -lpthread -ldl -lm
#include "pagedllm.h"
#include <string.h>

enum { PROMPT_TEXT, PROMPT_TOKENS, PROMPT_CHAT };

// Structs are filled here, so that no Go pointer is ever stored in C memory.
static pagedllm_status engine_open(const char *model, size_t model_len, const char *options,
                                   size_t options_len, int log_fd, uint32_t log_level,
                                   pagedllm_load_state *state, pagedllm_engine **out,
                                   const pagedllm_error **error) {
    pagedllm_engine_options given;
    memset(&given, 0, sizeof given);
    given.struct_size = sizeof given;
    given.model = model;
    given.model_len = model_len;
    given.options = options;
    given.options_len = options_len;
    if (log_fd >= 0) {
        given.log = pagedllm_log_to_fd;
        given.log_data = (void *)(intptr_t)log_fd;
        given.log_level = log_level;
    }
    given.progress = pagedllm_progress_to_memory;
    given.progress_data = state;
    return pagedllm_engine_open(&given, out, error);
}

static pagedllm_status generate(pagedllm_engine *engine, int kind, const void *prompt, size_t len,
                                const char *params, size_t params_len, uint64_t tag,
                                pagedllm_queue *queue, pagedllm_stream **out,
                                const pagedllm_error **error) {
    pagedllm_request request;
    memset(&request, 0, sizeof request);
    request.struct_size = sizeof request;
    if (kind == PROMPT_TEXT) {
        request.text = prompt ? prompt : "";
        request.text_len = len;
    } else if (kind == PROMPT_TOKENS) {
        request.tokens = prompt;
        request.tokens_len = len;
    } else {
        request.chat = prompt;
        request.chat_len = len;
    }
    request.params = params;
    request.params_len = params_len;
    request.tag = tag;
    return pagedllm_generate(engine, &request, queue, out, error);
}
*/
import "C"

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
	"unsafe"
)

// Options are engine options, named as on the command line: {"max-num-seqs": 8}.
type Options map[string]any

// Message is one turn of a conversation.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Params say how a request samples and when it stops. What is not set takes the model's default.
type Params struct {
	MaxTokens   int      `json:"max_tokens,omitempty"`
	Temperature *float64 `json:"temperature,omitempty"`
	TopP        *float64 `json:"top_p,omitempty"`
	TopK        *int     `json:"top_k,omitempty"`
	Seed        *int64   `json:"seed,omitempty"`
	Stop        []string `json:"stop,omitempty"`
	N           int      `json:"n,omitempty"`
	IgnoreEOS   bool     `json:"ignore_eos,omitempty"`
	// Extra holds any other parameter of OpenAI's API or vLLM's by its name.
	Extra map[string]any `json:"-"`
}

// Value returns a pointer to v, for the optional fields of [Params].
func Value[T any](v T) *T { return &v }

func (p Params) json() ([]byte, error) {
	plain, err := json.Marshal(p)
	if err != nil || len(p.Extra) == 0 {
		return plain, err
	}
	all := map[string]any{}
	for name, value := range p.Extra {
		all[name] = value
	}
	named := map[string]json.RawMessage{}
	if err := json.Unmarshal(plain, &named); err != nil {
		return nil, err
	}
	for name, value := range named {
		all[name] = value
	}
	return json.Marshal(all)
}

// Engine is a model that answers. All its methods may be called from any goroutine.
type Engine struct {
	// calls is held shared by each call into C, so that Close waits for them.
	calls  sync.RWMutex
	handle *C.pagedllm_engine
	queue  *C.pagedllm_queue
	log    engineLog

	mu      sync.Mutex
	streams map[uint64]*Stream
	nextTag uint64
	closing bool
	done    chan struct{}
}

// Open loads a model: a GGUF file, or a directory with config.json.
func Open(model string, options Options) (*Engine, error) {
	return OpenContext(context.Background(), model, Config{Options: options})
}

// OpenContext loads a model, unless ctx is done before that has ended.
func OpenContext(ctx context.Context, model string, config Config) (*Engine, error) {
	overlay, err := overlayOf(config.Options)
	if err != nil {
		return nil, err
	}
	engine := &Engine{streams: map[uint64]*Stream{}, done: make(chan struct{})}
	if engine.log, err = openLog(config.Logger); err != nil {
		return nil, err
	}
	load := watchLoad(ctx, config.Progress)
	var cError *C.pagedllm_error
	status := C.engine_open(chars(model), C.size_t(len(model)), bytesOf(overlay),
		C.size_t(len(overlay)), C.int(engine.log.fd), C.uint32_t(engine.log.level), load.state,
		&engine.handle, &cError)
	load.end(status == C.PAGEDLLM_OK)
	if err := check(status, cError); err != nil {
		engine.log.close()
		if ctx.Err() != nil && errors.Is(err, LoadCancelled) {
			return nil, ctx.Err()
		}
		return nil, err
	}
	if err := check(C.pagedllm_queue_new(&engine.queue, &cError), cError); err != nil {
		C.pagedllm_engine_free(engine.handle)
		engine.log.close()
		return nil, err
	}
	go engine.dispatch()
	return engine, nil
}

func overlayOf(options Options) ([]byte, error) {
	if options == nil {
		return nil, nil
	}
	return json.Marshal(options)
}

// Close ends all requests and frees the engine. Streams can still be read to their end.
func (e *Engine) Close() error {
	e.calls.Lock()
	handle := e.handle
	e.handle = nil
	e.calls.Unlock()
	if handle == nil {
		return nil
	}
	status := C.pagedllm_engine_free(handle)
	e.mu.Lock()
	e.closing = true
	e.mu.Unlock()
	C.pagedllm_queue_interrupt(e.queue, nil)
	<-e.done
	C.pagedllm_queue_free(e.queue)
	e.log.close()
	return check(status, nil)
}

// enter keeps the engine open until the returned function is called.
func (e *Engine) enter() (func(), error) {
	e.calls.RLock()
	if e.handle == nil {
		e.calls.RUnlock()
		return nil, &Error{Status: ShuttingDown, Message: "the engine is closed"}
	}
	return e.calls.RUnlock, nil
}

// Generate continues a text. When ctx is done, the request is cancelled.
func (e *Engine) Generate(ctx context.Context, prompt string, params Params) (*Stream, error) {
	return e.submit(ctx, C.PROMPT_TEXT, unsafe.Pointer(unsafe.StringData(prompt)), len(prompt), params)
}

// GenerateTokens continues token ids.
func (e *Engine) GenerateTokens(ctx context.Context, prompt []uint32, params Params) (*Stream, error) {
	return e.submit(ctx, C.PROMPT_TOKENS, unsafe.Pointer(unsafe.SliceData(prompt)), len(prompt), params)
}

// Chat answers a conversation.
func (e *Engine) Chat(ctx context.Context, messages []Message, params Params) (*Stream, error) {
	chat, err := json.Marshal(messages)
	if err != nil {
		return nil, err
	}
	return e.submit(ctx, C.PROMPT_CHAT, unsafe.Pointer(unsafe.SliceData(chat)), len(chat), params)
}

func (e *Engine) submit(ctx context.Context, kind C.int, prompt unsafe.Pointer, length int, params Params) (*Stream, error) {
	given, err := params.json()
	if err != nil {
		return nil, err
	}
	return e.start(ctx, func(tag C.uint64_t, out **C.pagedllm_stream, cError **C.pagedllm_error) C.pagedllm_status {
		return C.generate(e.handle, kind, prompt, C.size_t(length), bytesOf(given),
			C.size_t(len(given)), tag, e.queue, out, cError)
	})
}

// Endpoint is an endpoint of OpenAI's API.
type Endpoint uint32

// Endpoints that take a body.
const (
	Completions     Endpoint = C.PAGEDLLM_ENDPOINT_COMPLETIONS
	ChatCompletions Endpoint = C.PAGEDLLM_ENDPOINT_CHAT_COMPLETIONS
	Tokenize        Endpoint = C.PAGEDLLM_ENDPOINT_TOKENIZE
	Detokenize      Endpoint = C.PAGEDLLM_ENDPOINT_DETOKENIZE
)

// Complete answers an OpenAI request body with the JSON that the server would send, as events of
// kind [EventJSON].
func (e *Engine) Complete(ctx context.Context, endpoint Endpoint, body []byte) (*Stream, error) {
	return e.start(ctx, func(tag C.uint64_t, out **C.pagedllm_stream, cError **C.pagedllm_error) C.pagedllm_status {
		return C.pagedllm_complete(e.handle, C.uint32_t(endpoint), bytesOf(body),
			C.size_t(len(body)), tag, e.queue, out, cError)
	})
}

// Tokens returns the token ids of a text.
func (e *Engine) Tokens(text string, addSpecialTokens bool) ([]uint32, error) {
	leave, err := e.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	var out *C.pagedllm_tokens
	var cError *C.pagedllm_error
	special := C.uint32_t(0)
	if addSpecialTokens {
		special = 1
	}
	status := C.pagedllm_tokenize(e.handle, chars(text), C.size_t(len(text)), special, &out, &cError)
	if err := check(status, cError); err != nil {
		return nil, err
	}
	defer C.pagedllm_tokens_free(out)
	return copyTokens(out.data, out.len), nil
}

// Text returns the text of token ids, without special tokens.
func (e *Engine) Text(tokens []uint32) (string, error) {
	return e.text(func(out **C.pagedllm_text, cError **C.pagedllm_error) C.pagedllm_status {
		return C.pagedllm_detokenize(e.handle, (*C.uint32_t)(unsafe.SliceData(tokens)),
			C.size_t(len(tokens)), 1, out, cError)
	})
}

func (e *Engine) text(call func(**C.pagedllm_text, **C.pagedllm_error) C.pagedllm_status) (string, error) {
	leave, err := e.enter()
	if err != nil {
		return "", err
	}
	defer leave()
	var out *C.pagedllm_text
	var cError *C.pagedllm_error
	if err := check(call(&out, &cError), cError); err != nil {
		return "", err
	}
	defer C.pagedllm_text_free(out)
	return C.GoStringN(out.data, C.int(out.len)), nil
}

func chars(text string) *C.char { return (*C.char)(unsafe.Pointer(unsafe.StringData(text))) }

func bytesOf(data []byte) *C.char { return (*C.char)(unsafe.Pointer(unsafe.SliceData(data))) }

func copyTokens(data *C.uint32_t, length C.size_t) []uint32 {
	if length == 0 {
		return nil
	}
	return append([]uint32(nil), unsafe.Slice((*uint32)(data), int(length))...)
}

// check turns a status into an error and frees the error object.
func check(status C.pagedllm_status, cError *C.pagedllm_error) error {
	if status < C.PAGEDLLM_INVALID_ARGUMENT {
		return nil
	}
	err := &Error{Status: Status(status)}
	if cError != nil {
		err.Message = C.GoStringN(cError.message, C.int(cError.message_len))
		err.Param = C.GoStringN(cError.param, C.int(cError.param_len))
		err.RetryAfter = time.Duration(cError.retry_after_ms) * time.Millisecond
		C.pagedllm_error_free(cError)
	}
	return err
}

func statusName(status Status) string {
	return C.GoString(C.pagedllm_status_name(C.pagedllm_status(status)))
}

// start registers a stream and makes the call that begins it.
func (e *Engine) start(ctx context.Context, call func(C.uint64_t, **C.pagedllm_stream, **C.pagedllm_error) C.pagedllm_status) (*Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	leave, err := e.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	stream := &Stream{ctx: ctx, ready: make(chan struct{}, 1)}
	e.mu.Lock()
	e.nextTag++
	tag := e.nextTag
	e.streams[tag] = stream
	e.mu.Unlock()

	var handle *C.pagedllm_stream
	var cError *C.pagedllm_error
	if err := check(call(C.uint64_t(tag), &handle, &cError), cError); err != nil {
		e.mu.Lock()
		delete(e.streams, tag)
		e.mu.Unlock()
		return nil, err
	}
	cancel := func() { C.pagedllm_stream_cancel(handle, nil) }
	free := func() { C.pagedllm_stream_free(handle) }
	stream.begin(cancel, free)
	return stream, nil
}

// dispatch moves events from the engine's queue to the streams until the engine is closed.
func (e *Engine) dispatch() {
	defer close(e.done)
	const capacity = 64
	for {
		var events [capacity]*C.pagedllm_event
		var count C.size_t
		status := C.pagedllm_queue_poll(e.queue, C.PAGEDLLM_FOREVER, &events[0], capacity, &count, nil)
		if status == C.PAGEDLLM_OK {
			for _, event := range events[:count] {
				e.deliver(event)
				C.pagedllm_event_free(event)
			}
		}
		e.mu.Lock()
		finished := e.closing && len(e.streams) == 0
		e.mu.Unlock()
		if finished {
			return
		}
	}
}

func (e *Engine) deliver(event *C.pagedllm_event) {
	tag := uint64(event.tag)
	e.mu.Lock()
	stream := e.streams[tag]
	if event.kind == C.PAGEDLLM_EVENT_END {
		delete(e.streams, tag)
	}
	e.mu.Unlock()
	if stream == nil {
		return
	}
	usage := Usage{int(event.prompt_tokens), int(event.cached_tokens), int(event.output_tokens)}
	if event.kind == C.PAGEDLLM_EVENT_END {
		stream.end(usage)
		return
	}
	stream.push(Event{
		Kind:         EventKind(event.kind),
		Choice:       int(event.choice),
		Text:         C.GoStringN(event.text, C.int(event.text_len)),
		Tokens:       copyTokens(event.tokens, event.tokens_len),
		Logprobs:     copyLogprobs(event),
		FinishReason: FinishReason(event.finish_reason),
		Status:       Status(event.status),
		Usage:        usage,
	})
}

func copyLogprobs(event *C.pagedllm_event) []float32 {
	if event.logprobs == nil {
		return nil
	}
	return append([]float32(nil), unsafe.Slice((*float32)(event.logprobs), int(event.tokens_len))...)
}
