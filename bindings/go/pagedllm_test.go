package pagedllm

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var golden = []uint32{271, 312, 153, 231, 149, 307, 134, 172}

const tiny = "../../tests/golden/tiny/llama"

var tinyOptions = Options{
	"device": "cpu", "dtype": "float32", "threads": 1, "kv-cache-memory-bytes": "8M",
}

func openTiny(t testing.TB) *Engine {
	t.Helper()
	engine, err := Open(tiny, tinyOptions)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return engine
}

func greedy(maxTokens int) Params {
	return Params{MaxTokens: maxTokens, Temperature: Value(0.0), IgnoreEOS: true}
}

func TestGoldenTokens(t *testing.T) {
	engine := openTiny(t)
	stream, err := engine.GenerateTokens(context.Background(), []uint32{264}, greedy(8))
	if err != nil {
		t.Fatal(err)
	}
	var tokens []uint32
	var reason FinishReason
	for event, err := range stream.Events() {
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, event.Tokens...)
		reason = event.FinishReason
	}
	if !slices.Equal(tokens, golden) || reason != FinishLength {
		t.Fatalf("%v, %v", tokens, reason)
	}
	if usage := stream.Usage(); usage.OutputTokens != 8 || usage.PromptTokens != 1 {
		t.Fatalf("%+v", usage)
	}
}

func TestContextCancels(t *testing.T) {
	engine := openTiny(t)
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := engine.GenerateTokens(ctx, []uint32{264}, greedy(400))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := stream.Text(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := engine.Generate(ctx, "x", greedy(1)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestLeavingTheLoopCancels(t *testing.T) {
	engine := openTiny(t)
	stream, err := engine.GenerateTokens(context.Background(), []uint32{264}, greedy(400))
	if err != nil {
		t.Fatal(err)
	}
	for range stream.Events() {
		break
	}
	for {
		if _, err := stream.Next(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if stream.Usage().OutputTokens >= 400 {
		t.Fatal("it ran to its end")
	}
}

func TestManyStreams(t *testing.T) {
	engine := openTiny(t)
	var all sync.WaitGroup
	for range 200 {
		all.Add(1)
		go func() {
			defer all.Done()
			stream, err := engine.GenerateTokens(context.Background(), []uint32{264}, greedy(8))
			if err != nil {
				t.Error(err)
				return
			}
			var tokens []uint32
			for event, err := range stream.Events() {
				if err != nil {
					t.Error(err)
				}
				tokens = append(tokens, event.Tokens...)
			}
			if !slices.Equal(tokens, golden) {
				t.Error(tokens)
			}
		}()
	}
	all.Wait()
}

func TestCloseEndsStreams(t *testing.T) {
	engine := openTiny(t)
	stream, err := engine.GenerateTokens(context.Background(), []uint32{264}, greedy(400))
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Text(); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Generate(context.Background(), "x", greedy(1)); !errors.Is(err, ShuttingDown) {
		t.Fatal(err)
	}
}

func TestErrorsNameTheField(t *testing.T) {
	engine := openTiny(t)
	_, err := engine.Generate(context.Background(), "x", Params{Temperature: Value(9.0)})
	var failure *Error
	if !errors.As(err, &failure) || failure.Param != "temperature" || !errors.Is(err, InvalidRequest) {
		t.Fatal(err)
	}
	if _, err := Open("nowhere", nil); !errors.Is(err, ModelError) {
		t.Fatal(err)
	}
}

func TestChatReadsAsText(t *testing.T) {
	engine := openTiny(t)
	messages := []Message{{Role: "user", Content: "hi"}}
	stream, err := engine.Chat(context.Background(), messages, greedy(8))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(stream.Reader()); err != nil {
		t.Fatal(err)
	}
	tokens, err := engine.Tokens("hey", false)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := engine.Text(tokens); err != nil || text != "hey" {
		t.Fatal(text, err)
	}
}

// The answer of the server inside has the text that the binding gives.
func TestServerAndBindingAgree(t *testing.T) {
	engine := openTiny(t)
	server, err := engine.Serve(Options{"host": "127.0.0.1", "port": 0})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Close(time.Second); err != nil {
			t.Error(err)
		}
	}()
	body := `{"prompt": [264], "max_tokens": 8, "temperature": 0, "ignore_eos": true}`
	response, err := http.Post("http://"+server.Address()+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	served, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	stream, err := engine.Complete(context.Background(), Completions, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	embedded, err := io.ReadAll(stream.Reader())
	if err != nil {
		t.Fatal(err)
	}
	text := func(answer []byte) string {
		var parsed struct{ Choices []struct{ Text string } }
		if err := json.Unmarshal(answer, &parsed); err != nil || len(parsed.Choices) != 1 {
			t.Fatal(err, string(answer))
		}
		return parsed.Choices[0].Text
	}
	stream, err = engine.GenerateTokens(context.Background(), []uint32{264}, greedy(8))
	if err != nil {
		t.Fatal(err)
	}
	direct, err := stream.Text()
	if err != nil || text(served) != direct || text(embedded) != direct {
		t.Fatal(direct, string(served), string(embedded), err)
	}
}

func TestLogGoesToALogger(t *testing.T) {
	var text strings.Builder
	handler := slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug - 4})
	engine, err := OpenContext(context.Background(), tiny, Config{Options: tinyOptions, Logger: slog.New(handler)})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := engine.GenerateTokens(context.Background(), []uint32{264}, greedy(4))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Text(); err != nil {
		t.Fatal(err)
	}
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
	// Close has waited for the last line.
	if !strings.Contains(text.String(), "target=pagedllm_engine") {
		t.Fatal(text.String())
	}
}

func TestLoadIsReportedAndCancelled(t *testing.T) {
	var done, total uint64
	config := Config{Options: tinyOptions, Progress: func(d, t uint64) { done, total = d, t }}
	engine, err := OpenContext(context.Background(), tiny, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
	if total == 0 || done != total {
		t.Fatal(done, total)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := OpenContext(ctx, tiny, config); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestStatsCountWhatRan(t *testing.T) {
	engine := openTiny(t)
	for range 3 {
		stream, err := engine.GenerateTokens(context.Background(), []uint32{264}, greedy(8))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Text(); err != nil {
			t.Fatal(err)
		}
	}
	stats, err := engine.Stats()
	if err != nil || stats.GenerationTokens != 24 || stats.Finished.Length != 3 || stats.Blocks == 0 {
		t.Fatal(stats, err)
	}
}

func TestShutDownEngineTakesNoRequests(t *testing.T) {
	engine := openTiny(t)
	if err := engine.Health(); err != nil {
		t.Fatal(err)
	}
	if err := engine.Shutdown(time.Second); err != nil {
		t.Fatal(err)
	}
	if err := engine.Health(); !errors.Is(err, ShuttingDown) {
		t.Fatal(err)
	}
	if _, err := engine.Generate(context.Background(), "x", greedy(1)); !errors.Is(err, ShuttingDown) {
		t.Fatal(err)
	}
}

// The numbers written in Go are those of the header.
func TestNumbersAreTheHeaders(t *testing.T) {
	header, err := os.ReadFile("../../include/pagedllm.h")
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[string]int{}
	for _, line := range regexp.MustCompile(`#define PAGEDLLM_(\w+) (\d+)`).FindAllStringSubmatch(string(header), -1) {
		numbers[line[1]], _ = strconv.Atoi(line[2])
	}
	expected := map[string]int{
		"INVALID_ARGUMENT": int(InvalidArgument), "INVALID_HANDLE": int(InvalidHandle),
		"INVALID_STRUCT_SIZE": int(InvalidStructSize), "INVALID_UTF8": int(InvalidUTF8),
		"INVALID_OPTION": int(InvalidOption), "INVALID_REQUEST": int(InvalidRequest),
		"CONTEXT_LENGTH": int(ContextLength), "MODEL_NOT_FOUND": int(ModelNotFound),
		"MODEL_ERROR": int(ModelError), "LOAD_CANCELLED": int(LoadCancelled),
		"QUEUE_FULL": int(QueueFull), "SHUTTING_DOWN": int(ShuttingDown),
		"ENGINE_FAILED": int(EngineFailed), "BUSY": int(Busy), "USED_AFTER_FORK": int(UsedAfterFork),
		"LISTEN_FAILED": int(ListenFailed), "OUT_OF_RESOURCES": int(OutOfResources),
		"CANCELLED": int(Cancelled), "DEADLINE": int(Deadline), "UNSUPPORTED": int(Unsupported),
		"INTERNAL": int(Internal), "EVENT_TEXT": int(EventText), "EVENT_FINISHED": int(EventFinished),
		"EVENT_PROMPT": int(EventPrompt), "EVENT_JSON": int(EventJSON), "EVENT_FAILED": int(EventFailed),
		"FINISH_LENGTH": int(FinishLength), "FINISH_STOP_TOKEN": int(FinishStopToken),
		"FINISH_STOP_STRING": int(FinishStopString), "FINISH_CANCELLED": int(FinishCancelled),
		"FINISH_DEADLINE": int(FinishDeadline), "FINISH_FAULT": int(FinishFault),
	}
	for name, value := range expected {
		if numbers[name] != value {
			t.Errorf("%s is %d in Go and %d in the header", name, value, numbers[name])
		}
	}
}
