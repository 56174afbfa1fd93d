package pagedllm

import (
	"context"
	"io"
	"iter"
	"strings"
	"sync"
)

// EventKind says what an event is.
type EventKind uint32

// Kinds of events.
const (
	EventText     EventKind = 1
	EventFinished EventKind = 2
	EventPrompt   EventKind = 3
	EventJSON     EventKind = 4
	EventFailed   EventKind = 5
)

// FinishReason says why a choice ended.
type FinishReason uint32

// Reasons to finish.
const (
	FinishNone       FinishReason = 0
	FinishLength     FinishReason = 1
	FinishStopToken  FinishReason = 2
	FinishStopString FinishReason = 3
	FinishCancelled  FinishReason = 4
	FinishDeadline   FinishReason = 5
	FinishFault      FinishReason = 6
)

// Usage counts the tokens of a request.
type Usage struct {
	PromptTokens, CachedTokens, OutputTokens int
}

// Event is something that happened to one choice of a request.
type Event struct {
	Kind   EventKind
	Choice int
	// Text is to be appended; it never ends inside a character.
	Text   string
	Tokens []uint32
	// Logprobs has one entry a token, where asked for.
	Logprobs     []float32
	FinishReason FinishReason
	Status       Status
	Usage        Usage
}

// Stream is the answer to one request. It frees itself at its end, which comes whether it is read
// or not; Close brings the end near.
type Stream struct {
	ctx   context.Context
	ready chan struct{}

	mu     sync.Mutex
	events []Event
	usage  Usage
	ended  bool
	cancel func()
	free   func()
	unhook func() bool
}

// begin hands over what ends the stream in C. The end may have come before.
func (s *Stream) begin(cancel, free func()) {
	s.mu.Lock()
	ended := s.ended
	if !ended {
		s.cancel, s.free = cancel, free
		s.unhook = context.AfterFunc(s.ctx, s.Close)
	}
	s.mu.Unlock()
	if ended {
		free()
	}
}

func (s *Stream) push(event Event) {
	s.mu.Lock()
	s.events = append(s.events, event)
	s.mu.Unlock()
	s.signal()
}

func (s *Stream) end(usage Usage) {
	s.mu.Lock()
	free, unhook := s.free, s.unhook
	s.ended, s.usage, s.cancel, s.free = true, usage, nil, nil
	s.mu.Unlock()
	s.signal()
	if unhook != nil {
		unhook()
	}
	if free != nil {
		free()
	}
}

func (s *Stream) signal() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Close cancels what has not ended. It may be called at any time, also twice.
func (s *Stream) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel()
	}
}

// Next waits for the next event. It returns io.EOF after the last, and the context's error when
// the context is done first.
func (s *Stream) Next() (Event, error) {
	for {
		if err := s.ctx.Err(); err != nil {
			return Event{}, err
		}
		s.mu.Lock()
		if len(s.events) > 0 {
			event := s.events[0]
			s.events = s.events[1:]
			s.mu.Unlock()
			return event, nil
		}
		ended := s.ended
		s.mu.Unlock()
		if ended {
			s.signal() // For others who wait.
			return Event{}, io.EOF
		}
		select {
		case <-s.ready:
		case <-s.ctx.Done():
		}
	}
}

// Events iterates over the events. Leaving the loop early cancels the request.
func (s *Stream) Events() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		defer s.Close()
		for {
			event, err := s.Next()
			if err == io.EOF || !yield(event, err) || err != nil {
				return
			}
		}
	}
}

// Text reads the whole text of the first choice.
func (s *Stream) Text() (string, error) {
	var text strings.Builder
	for event, err := range s.Events() {
		if err != nil {
			return text.String(), err
		}
		if event.Choice == 0 && event.Kind == EventText {
			text.WriteString(event.Text)
		}
	}
	return text.String(), nil
}

// Usage counts the tokens once the stream has ended.
func (s *Stream) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usage
}

// Reader reads the text of the first choice, or the JSON of an answer, as it comes.
func (s *Stream) Reader() io.ReadCloser { return &reader{stream: s} }

type reader struct {
	stream *Stream
	left   string
}

func (r *reader) Read(into []byte) (int, error) {
	for r.left == "" && len(into) > 0 {
		event, err := r.stream.Next()
		if err != nil {
			return 0, err
		}
		if event.Choice == 0 && (event.Kind == EventText || event.Kind == EventJSON) {
			r.left = event.Text
		}
	}
	n := copy(into, r.left)
	r.left = r.left[n:]
	return n, nil
}

func (r *reader) Close() error {
	r.stream.Close()
	return nil
}
