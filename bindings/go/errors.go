package pagedllm

import (
	"fmt"
	"time"
)

// Status is a code of the C library. A test holds these numbers against the header.
type Status int32

// All codes of failures.
const (
	InvalidArgument   Status = 16
	InvalidHandle     Status = 17
	InvalidStructSize Status = 18
	InvalidUTF8       Status = 19
	InvalidOption     Status = 20
	InvalidRequest    Status = 21
	ContextLength     Status = 22
	ModelNotFound     Status = 23
	ModelError        Status = 24
	LoadCancelled     Status = 25
	QueueFull         Status = 26
	ShuttingDown      Status = 27
	EngineFailed      Status = 28
	Busy              Status = 29
	UsedAfterFork     Status = 30
	ListenFailed      Status = 31
	OutOfResources    Status = 32
	Cancelled         Status = 33
	Deadline          Status = 34
	Unsupported       Status = 35
	Internal          Status = 36
)

// Error makes a Status a target of errors.Is: errors.Is(err, pagedllm.QueueFull).
func (s Status) Error() string { return statusName(s) }

// Error is why a call failed.
type Error struct {
	Status Status
	// Message says what is wrong and what would be right.
	Message string
	// Param is the option or field to blame, if there is one.
	Param string
	// RetryAfter is when trying again makes sense, if that is known.
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("pagedllm: %s", e.Status.Error())
	}
	return "pagedllm: " + e.Message
}

// Is reports whether the error has the status target.
func (e *Error) Is(target error) bool {
	status, ok := target.(Status)
	return ok && status == e.Status
}
