// Time of events through the Go binding: bench MODEL OPTIONS STREAMS TOKENS
//
// To be run on the engine without a model, test-executor:FOLDER, of a library with that feature.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	pagedllm "github.com/pagedllm/pagedllm/bindings/go"
)

func main() {
	var options pagedllm.Options
	must(json.Unmarshal([]byte(os.Args[2]), &options))
	count, err := strconv.Atoi(os.Args[3])
	must(err)
	tokens, err := strconv.Atoi(os.Args[4])
	must(err)
	engine, err := pagedllm.Open(os.Args[1], options)
	must(err)
	defer engine.Close()

	params := pagedllm.Params{MaxTokens: tokens, Temperature: pagedllm.Value(0.0), IgnoreEOS: true}
	seen := make([]int, count)
	start, cpuStart := time.Now(), cpuTime()
	var all sync.WaitGroup
	for i := range count {
		stream, err := engine.GenerateTokens(context.Background(), []uint32{1}, params)
		must(err)
		all.Add(1)
		go func() {
			defer all.Done()
			for event, err := range stream.Events() {
				must(err)
				seen[i] += len(event.Tokens)
			}
		}()
	}
	all.Wait()
	wall, cpu := time.Since(start), cpuTime()-cpuStart
	sum := 0
	for _, one := range seen {
		sum += one
	}
	if sum != count*tokens {
		log.Fatalf("%d tokens", sum)
	}
	fmt.Printf("{\"tokens\": %d, \"wall_s\": %f, \"cpu_s\": %f}\n", sum, wall.Seconds(), cpu.Seconds())
}

// cpuTime is the processor time of all threads so far.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
