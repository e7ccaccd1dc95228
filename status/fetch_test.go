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

func TestFetchWithoutAgent(t *testing.T) {
	address := freeAddress(t)
	if _, err := status.Fetch(t.Context(), address); err == nil || !strings.Contains(err.Error(), "gpucdi serve") {
		t.Errorf("Fetch without an agent: %v", err)
	}
}

// endless responds with head and 256 MiB of repeated blocks, unless the client closes the connection earlier.
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

// Whatever listens at the address, the response is bounded, and the error names the address and contains no control
// characters.
func TestFetchFromOtherServers(t *testing.T) {
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"an endless string": {endless(`{"name":"`, "x"), "exceeds"},
		"endless devices":   {endless(`{"devices":[`, `{},`), "exceeds"},
		"endless blanks":    {endless(``, " "), "exceeds"},
		"an endless error": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			endless("\x1b[2J", "x")(w, r)
		}, "418"},
		"an endless header": {func(w http.ResponseWriter, _ *http.Request) {
			for i := range 1000 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1<<10))
			}
		}, "header"},
		"a redirect": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/status")
			w.WriteHeader(http.StatusFound)
		}, "302"},
		"HTML":               {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, "--address"},
		"other JSON":         {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "[1]") }, "--address"},
		"a truncated status": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"name":"no`) }, "--address"},
	} {
		t.Run(name, func(t *testing.T) {
			peer := httptest.NewServer(tc.handler)
			defer peer.Close()
			address := strings.TrimPrefix(peer.URL, "http://")
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := status.Fetch(t.Context(), address)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), address) ||
				strings.Contains(err.Error(), "\x1b") || len(err.Error()) > 1000 {
				t.Errorf("error %.2000v, want %q", err, tc.want)
			}
			if allocated := (after.TotalAlloc - before.TotalAlloc) >> 20; allocated > 64 {
				t.Errorf("allocated %d MiB, want at most 64", allocated)
			}
		})
	}
}

// The deadline of the context ends a response that the server never ends.
func TestFetchSlowResponse(t *testing.T) {
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
		t.Errorf("error %v, want %v", err, context.DeadlineExceeded)
	}
}

// A peer may use another protocol, or close the connection.
func TestFetchOtherProtocol(t *testing.T) {
	for _, greeting := range []string{"SSH-2.0-OpenSSH_9.2\r\n", "\x1b[2J\x00\xff\r\n\r\n", ""} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, err := listener.Accept()
			if err == nil {
				_, _ = io.WriteString(conn, greeting)
				_ = conn.Close()
			}
		}()
		if _, err := status.Fetch(t.Context(), listener.Addr().String()); err == nil || strings.ContainsAny(err.Error(), "\x1b\x00") {
			t.Errorf("%q: error %q, want one without control characters", greeting, fmt.Sprint(err))
		}
		_ = listener.Close()
	}
}
