package pagedllm

/*
#include "pagedllm.h"
#include <stdlib.h>
*/
import "C"

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Config says how to open a model. Its zero value takes the defaults.
type Config struct {
	// Options are named as on the command line.
	Options Options
	// Logger receives the log at the levels that it is enabled for when the model is opened;
	// nil drops the log.
	Logger *slog.Logger
	// Progress is told how the load goes, some times a second and at its end.
	Progress func(doneBytes, totalBytes uint64)
}

// levels are those of the library, the coarsest first.
var levels = []struct {
	name  string
	level slog.Level
}{
	{"error", slog.LevelError},
	{"warn", slog.LevelWarn},
	{"info", slog.LevelInfo},
	{"debug", slog.LevelDebug},
	{"trace", slog.LevelDebug - 4},
}

// engineLog brings the lines that the library writes to a socket to a logger. Nothing of C calls
// into Go.
type engineLog struct {
	fd    int
	level int
	done  chan struct{}
}

func openLog(logger *slog.Logger) (engineLog, error) {
	log := engineLog{fd: -1}
	if logger == nil {
		return log, nil
	}
	for _, known := range levels {
		if logger.Enabled(context.Background(), known.level) {
			log.level++
		}
	}
	if log.level == 0 {
		return log, nil
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return log, err
	}
	log.fd, log.done = fds[0], make(chan struct{})
	go log.read(os.NewFile(uintptr(fds[1]), "log of pagedllm"), logger)
	return log, nil
}

func (l engineLog) read(from *os.File, logger *slog.Logger) {
	defer close(l.done)
	defer from.Close()
	for lines := bufio.NewScanner(from); lines.Scan(); {
		var entry struct{ Level, Target, Message string }
		if json.Unmarshal(lines.Bytes(), &entry) != nil {
			continue
		}
		for _, known := range levels {
			if known.name == entry.Level {
				logger.Log(context.Background(), known.level, entry.Message, "target", entry.Target)
			}
		}
	}
}

// close waits for the last line. To be called when the library writes no more.
func (l engineLog) close() {
	if l.fd < 0 {
		return
	}
	// Not only closed: a child process may hold the socket too.
	syscall.Shutdown(l.fd, syscall.SHUT_WR)
	syscall.Close(l.fd)
	<-l.done
}

const lookEvery = 50 * time.Millisecond

// loadWatch looks at the progress of a load, and cancels it when its context is done.
type loadWatch struct {
	state    *C.pagedllm_load_state
	progress func(done, total uint64)
	opened   chan struct{}
	ended    chan struct{}
}

func watchLoad(ctx context.Context, progress func(done, total uint64)) *loadWatch {
	if progress == nil {
		progress = func(uint64, uint64) {}
	}
	watch := &loadWatch{
		state:    (*C.pagedllm_load_state)(C.calloc(1, C.sizeof_pagedllm_load_state)),
		progress: progress,
		opened:   make(chan struct{}),
		ended:    make(chan struct{}),
	}
	if ctx.Err() != nil {
		watch.cancel()
	}
	go watch.run(ctx)
	return watch
}

func (w *loadWatch) run(ctx context.Context) {
	defer close(w.ended)
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			w.report()
		case <-ctx.Done():
			w.cancel()
			<-w.opened
			return
		case <-w.opened:
			return
		}
	}
}

func (w *loadWatch) cancel() {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&w.state.cancel)), 1)
}

func (w *loadWatch) report() {
	done := atomic.LoadUint64((*uint64)(unsafe.Pointer(&w.state.done_bytes)))
	total := atomic.LoadUint64((*uint64)(unsafe.Pointer(&w.state.total_bytes)))
	if total > 0 {
		w.progress(done, total)
	}
}

// end stops looking; a load that came to its end is reported once more.
func (w *loadWatch) end(isOpen bool) {
	close(w.opened)
	<-w.ended
	if isOpen {
		w.report()
	}
	C.free(unsafe.Pointer(w.state))
}
