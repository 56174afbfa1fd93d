// A web page over a model inside this program: go run ./example/service MODEL [HOST:PORT]
//
// Answers stream as server-sent events. A reader that goes away cancels its request.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	pagedllm "github.com/pagedllm/pagedllm/bindings/go"
)

const (
	maxBody    = 64 << 10
	maxAnswers = 8 // At once; others are told to come again.
	maxTokens  = 512
	maxTime    = time.Minute
)

//go:embed page.html
var page []byte

type service struct {
	engine *pagedllm.Engine
	places chan struct{}
}

func (s *service) answer(w http.ResponseWriter, r *http.Request) {
	var asked struct{ Messages []pagedllm.Message }
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(body, &asked)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many answers at once", http.StatusTooManyRequests)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), maxTime)
	defer cancel()
	stream, err := s.engine.Chat(ctx, asked.Messages, pagedllm.Params{MaxTokens: maxTokens})
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	out := http.NewResponseController(w)
	for event, err := range stream.Events() {
		if err != nil {
			return // The reader is gone, or the time is up.
		}
		piece, err := json.Marshal(map[string]string{"text": event.Text})
		if err != nil {
			return
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", piece); err != nil || out.Flush() != nil {
			return
		}
	}
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, pagedllm.InvalidRequest), errors.Is(err, pagedllm.ContextLength):
		return http.StatusBadRequest
	case errors.Is(err, pagedllm.QueueFull):
		return http.StatusTooManyRequests
	default:
		return http.StatusServiceUnavailable
	}
}

func (s *service) stats(w http.ResponseWriter, _ *http.Request) {
	stats, err := s.engine.Stats()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(stats)
}

func main() {
	address := "127.0.0.1:8080"
	if len(os.Args) > 2 {
		address = os.Args[2]
	}
	engine, err := pagedllm.Open(os.Args[1], nil)
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	s := &service{engine, make(chan struct{}, maxAnswers)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { w.Write(page) })
	mux.HandleFunc("POST /answer", s.answer)
	mux.HandleFunc("GET /stats", s.stats)
	server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second}

	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("http://%s\n", listener.Addr())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}
