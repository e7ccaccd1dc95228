package status_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/status"
)

func TestFetchFromNobody(t *testing.T) {
	address := freeAddress(t)
	if _, err := status.Fetch(t.Context(), address); err == nil || !strings.Contains(err.Error(), "gpucdi serve") {
		t.Errorf("Fetch from nobody: %v", err)
	}
}

// endless answers with text that has no end; it stops only with the client, or far
// beyond what one may read.
func endless(head, block string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, head)
		block := strings.Repeat(block, 1<<20/len(block))
		for range 256 {
			if _, err := io.WriteString(w, block); err != nil {
				return
			}
		}
	}
}

// Whoever listens at the address, the reply is bounded, and the error names it and
// has nothing of it that a terminal would obey.
func TestFetchFromAnybody(t *testing.T) {
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		says    string
	}{
		"a string without end": {endless(`{"name":"`, "x"), "exceeds"},
		"devices without end":  {endless(`{"devices":[`, `{},`), "exceeds"},
		"blanks without end":   {endless(``, " "), "exceeds"},
		"an error without end": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			endless("\x1b[2J", "x")(w, r)
		}, "418"},
		"a header without end": {func(w http.ResponseWriter, _ *http.Request) {
			for i := range 1000 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1<<10))
			}
		}, "header"},
		"a redirect": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/status")
			w.WriteHeader(http.StatusFound)
		}, "302"},
		"no JSON":       {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, "is it gpucdi"},
		"other JSON":    {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "[1]") }, "is it gpucdi"},
		"half a status": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"name":"no`) }, "is it gpucdi"},
	} {
		t.Run(name, func(t *testing.T) {
			peer := httptest.NewServer(tc.handler)
			defer peer.Close()
			address := strings.TrimPrefix(peer.URL, "http://")
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := status.Fetch(t.Context(), address)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), address) ||
				strings.Contains(err.Error(), "\x1b") || len(err.Error()) > 1000 {
				t.Errorf("the error is %.2000v, want %q", err, tc.says)
			}
			if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 64 {
				t.Errorf("it took %d MiB", took)
			}
		})
	}
}

// A peer that never ends its reply is given up with the request's deadline.
func TestFetchFromAPeerThatTrickles(t *testing.T) {
	stop := make(chan struct{})
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			_, _ = io.WriteString(w, " ")
			w.(http.Flusher).Flush()
			select {
			case <-time.After(10 * time.Millisecond):
			case <-r.Context().Done():
				return
			case <-stop:
				return
			}
		}
	}))
	defer peer.Close()
	defer close(stop)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := status.Fetch(ctx, strings.TrimPrefix(peer.URL, "http://")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v", err)
	}
}

// A peer that speaks no HTTP, or hangs up, is not the agent.
func TestFetchFromAnotherProtocol(t *testing.T) {
	for _, says := range []string{"SSH-2.0-OpenSSH_9.2\r\n", "\x1b[2J\x00\xff\r\n\r\n", ""} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, err := listener.Accept()
			if err == nil {
				_, _ = io.WriteString(conn, says)
				_ = conn.Close()
			}
		}()
		if _, err := status.Fetch(t.Context(), listener.Addr().String()); err == nil || strings.ContainsAny(err.Error(), "\x1b\x00") {
			t.Errorf("%q: %v", says, err)
		}
		_ = listener.Close()
	}
}
