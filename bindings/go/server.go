package pagedllm

/*
#include "pagedllm.h"
*/
import "C"

import (
	"encoding/json"
	"time"
)

// Server is an HTTP server over an engine. Close it before the engine.
type Server struct {
	handle  *C.pagedllm_server
	address string
}

// Serve serves the engine over HTTP with OpenAI's API; {"host": "127.0.0.1", "port": 0} listens
// on a free port of this machine.
func (e *Engine) Serve(options Options) (*Server, error) {
	overlay, err := overlayOf(options)
	if err != nil {
		return nil, err
	}
	leave, err := e.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	server := &Server{}
	var cError *C.pagedllm_error
	status := C.pagedllm_server_start(e.handle, bytesOf(overlay), C.size_t(len(overlay)),
		&server.handle, &cError)
	if err := check(status, cError); err != nil {
		return nil, err
	}
	var out *C.pagedllm_text
	if err := check(C.pagedllm_server_address(server.handle, &out, &cError), cError); err != nil {
		C.pagedllm_server_free(server.handle)
		return nil, err
	}
	server.address = C.GoStringN(out.data, C.int(out.len))
	C.pagedllm_text_free(out)
	return server, nil
}

// Address is where the server listens, as host:port.
func (s *Server) Address() string { return s.address }

// Close takes no more connections, gives those there are some time, and frees the server.
func (s *Server) Close(timeout time.Duration) error {
	C.pagedllm_server_stop(s.handle, milliseconds(timeout), nil)
	return check(C.pagedllm_server_free(s.handle), nil)
}

// Stats are counters of an engine at one moment. Those named Total in JSON count from its start.
type Stats struct {
	Running            int   `json:"num_running"`
	Waiting            int   `json:"num_waiting"`
	Blocks             int   `json:"num_blocks"`
	BlocksUsed         int   `json:"num_blocks_used"`
	BlocksCached       int   `json:"num_blocks_cached"`
	PromptTokens       int64 `json:"prompt_tokens_total"`
	PromptTokensCached int64 `json:"prompt_tokens_cached_total"`
	GenerationTokens   int64 `json:"generation_tokens_total"`
	Preemptions        int64 `json:"preemptions_total"`
	Steps              int64 `json:"steps_total"`
	Finished           struct {
		Stop   int64 `json:"stop"`
		Length int64 `json:"length"`
		Abort  int64 `json:"abort"`
		Error  int64 `json:"error"`
	} `json:"finished_total"`
	RejectedQueueFull int64 `json:"rejected_queue_full_total"`
}

// Stats returns the most used counters.
func (e *Engine) Stats() (Stats, error) {
	var stats Stats
	text, err := e.metrics(C.PAGEDLLM_METRICS_JSON)
	if err == nil {
		err = json.Unmarshal([]byte(text), &stats)
	}
	return stats, err
}

// Metrics returns the engine's counters in Prometheus' text format.
func (e *Engine) Metrics() (string, error) { return e.metrics(C.PAGEDLLM_METRICS_PROMETHEUS) }

func (e *Engine) metrics(format C.uint32_t) (string, error) {
	return e.text(func(out **C.pagedllm_text, cError **C.pagedllm_error) C.pagedllm_status {
		return C.pagedllm_engine_metrics(e.handle, format, out, cError)
	})
}

// Info describes the model as a JSON object.
func (e *Engine) Info() (string, error) {
	return e.text(func(out **C.pagedllm_text, cError **C.pagedllm_error) C.pagedllm_status {
		return C.pagedllm_engine_info(e.handle, out, cError)
	})
}

// Health says why the engine takes no more requests; nil if it does.
func (e *Engine) Health() error {
	leave, err := e.enter()
	if err != nil {
		return err
	}
	defer leave()
	var cError *C.pagedllm_error
	return check(C.pagedllm_engine_health(e.handle, &cError), cError)
}

// Shutdown takes no more requests, gives those that run some time, and ends the rest.
func (e *Engine) Shutdown(timeout time.Duration) error {
	leave, err := e.enter()
	if err != nil {
		return err
	}
	defer leave()
	var cError *C.pagedllm_error
	return check(C.pagedllm_engine_shutdown(e.handle, milliseconds(timeout), &cError), cError)
}

func milliseconds(timeout time.Duration) C.uint32_t {
	return C.uint32_t(min(max(timeout.Milliseconds(), 0), C.PAGEDLLM_FOREVER-1))
}
