// Streams an answer: go run ./example MODEL "Tell me a story"
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	pagedllm "github.com/pagedllm/pagedllm/bindings/go"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	engine, err := pagedllm.Open(os.Args[1], nil)
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	messages := []pagedllm.Message{{Role: "user", Content: os.Args[2]}}
	stream, err := engine.Chat(ctx, messages, pagedllm.Params{MaxTokens: 200})
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range stream.Events() {
		if err != nil {
			log.Fatal(err) // Interrupted: the request is cancelled.
		}
		fmt.Print(event.Text)
	}
	fmt.Println()
}
