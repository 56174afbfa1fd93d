// As answers.c, through the Go binding.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"

	pagedllm "github.com/pagedllm/pagedllm/bindings/go"
)

func main() {
	var options pagedllm.Options
	var params pagedllm.Params
	must(json.Unmarshal([]byte(os.Args[2]), &options))
	must(json.Unmarshal([]byte(os.Args[3]), &params.Extra))
	engine, err := pagedllm.Open(os.Args[1], options)
	must(err)
	defer engine.Close()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		kind, text, _ := strings.Cut(lines.Text(), "\t")
		stream, err := ask(engine, kind, text, params)
		must(err)
		for event, err := range stream.Events() {
			must(err)
			if event.Kind == pagedllm.EventJSON {
				fmt.Println(event.Text)
			}
			for _, token := range event.Tokens {
				fmt.Print(token, " ")
			}
		}
		if kind == "generate" {
			fmt.Println()
		}
		fmt.Println()
	}
}

func ask(engine *pagedllm.Engine, kind, text string, params pagedllm.Params) (*pagedllm.Stream, error) {
	ctx := context.Background()
	switch kind {
	case "generate":
		return engine.Generate(ctx, text, params)
	case "chat":
		return engine.Complete(ctx, pagedllm.ChatCompletions, []byte(text))
	default:
		return engine.Complete(ctx, pagedllm.Completions, []byte(text))
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
