// Answers as the model generates, until Ctrl-C: go run ./example/chat MODEL "What is gravity?"
package main

import (
	"context"
	"errors"
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
		if errors.Is(err, context.Canceled) {
			fmt.Print(" [cancelled]")
		} else if err != nil {
			log.Fatal(err)
		}
		fmt.Print(event.Text)
	}
	fmt.Println()
}
