package status

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// send sends count concurrent requests. The responses are complete when wait returns.
func send(ctx context.Context, c *coalescer, count int) (responses []*httptest.ResponseRecorder, wait func()) {
	var all sync.WaitGroup
	for range count {
		recorder := httptest.NewRecorder()
		responses = append(responses, recorder)
		all.Go(func() {
			c.ServeHTTP(recorder, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
		})
	}
	return responses, all.Wait
}

// Requests that wait for a response in progress share the next one, which is started after they arrive.
func TestWaitingRequestsShareAResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		c := newCoalescer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			made++
			fmt.Fprint(w, made)
			time.Sleep(time.Second)
		}))
		first, waitFirst := send(t.Context(), c, 1)
		time.Sleep(time.Millisecond)
		others, waitOthers := send(t.Context(), c, 100)
		waitFirst()
		waitOthers()
		if made != 2 || first[0].Body.String() != "1" {
			t.Errorf("%d responses were made, the first request received %s", made, first[0].Body)
		}
		for _, other := range others {
			if other.Body.String() != "2" {
				t.Errorf("a later request received %s", other.Body)
			}
		}
	})
}

func TestDisconnectedClientsDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		c := newCoalescer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			made++
			time.Sleep(time.Hour)
		}))
		_, waitFirst := send(t.Context(), c, 1)
		ctx, cancel := context.WithCancel(t.Context())
		synctest.Wait()
		_, waitOthers := send(ctx, c, 100)
		synctest.Wait()
		start := time.Now()
		cancel()
		waitOthers()
		if waited := time.Since(start); waited > 0 || made != 1 {
			t.Errorf("requests waited for %s, and %d responses were made", waited, made)
		}
		waitFirst()
	})
}

func TestEqualResponsesShareBody(t *testing.T) {
	c := newCoalescer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the same") }))
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	one, _ := c.respond(request)
	other, _ := c.respond(request)
	if one == other || &one.body[0] != &other.body[0] {
		t.Error("equal responses have different bodies")
	}
}
