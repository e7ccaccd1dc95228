package kubelet

import (
	"context"
	"testing"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/allocator"
)

// sentOn waits until a list was sent after a time, on a stream that began after another.
func sentOn(t *testing.T, p *Plugin, stream, sent time.Time) (list allocator.List) {
	t.Helper()
	eventually(t, "list that was sent", func() bool {
		list = p.List()
		return list.Stream.After(stream) && list.Sent.After(sent)
	})
	if list.Sent.Before(list.Stream) {
		t.Errorf("%+v was sent before the stream began", list)
	}
	return list
}

func TestListSaysWhatWasSent(t *testing.T) {
	sent := make(chan struct{}, 10)
	cfg := testConfig(t.TempDir())
	cfg.Sent = func() { sent <- struct{}{} }
	p := New(cfg, testLog(t))
	if list := p.List(); list != (allocator.List{}) {
		t.Errorf("before the start: %+v", list)
	}
	kubelet := newFakeKubelet(t, cfg.Dir).start()
	runPlugin(t, p)
	r := kubelet.next()
	eventually(t, "stream", func() bool { return !p.List().Stream.IsZero() })
	if list := p.List(); !list.Sent.IsZero() {
		t.Errorf("before the first list: %+v", list)
	}

	p.Update(offer(bothWays))
	receive(t, sent, "a call after the first list")
	first := p.List()
	if first.Sent.IsZero() {
		t.Error("no first list, in spite of the call")
	}
	p.Resend()
	receive(t, sent, "a call after the same list")
	if again := p.List(); !again.Stream.Equal(first.Stream) || !again.Sent.After(first.Sent) {
		t.Errorf("%+v after %+v, want a later list on the same stream", again, first)
	}

	r.hangUp()
	kubelet.next()
	receive(t, sent, "a call after the list on the next stream")
	sentOn(t, p, first.Stream, first.Sent)
}

func TestListIsOfTheNewestStream(t *testing.T) {
	r, p := connect(t, offer(bothWays))
	first := sentOn(t, p, time.Time{}, time.Time{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := r.client.ListAndWatch(ctx, &api.Empty{}); err != nil {
		t.Fatal(err)
	}
	newer := sentOn(t, p, first.Stream, first.Sent)
	cancel()
	eventually(t, "return to the older stream", func() bool { return p.List().Stream.Equal(first.Stream) })
	p.Resend()
	eventually(t, "list on the older stream", func() bool { return p.List().Sent.After(newer.Sent) })
}

func TestListEndsWithTheStream(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	p, stop := start(t, dir)
	works(t, kubelet.next())
	stop()
	if list := p.List(); list != (allocator.List{}) {
		t.Errorf("after the end: %+v", list)
	}
}
