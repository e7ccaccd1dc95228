package kubelet

import (
	"context"
	"testing"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/allocator"
)

// awaitList waits for a list sent after sent, on a stream opened after stream.
func awaitList(t *testing.T, p *Plugin, stream, sent time.Time) (list allocator.List) {
	t.Helper()
	eventually(t, "list", func() bool {
		list = p.List()
		return list.Stream.After(stream) && list.Sent.After(sent)
	})
	if list.Sent.Before(list.Stream) {
		t.Errorf("%+v: sent before the stream was opened", list)
	}
	return list
}

func TestList(t *testing.T) {
	sent := make(chan struct{}, 10)
	cfg := testConfig(t.TempDir())
	cfg.Sent = func() { sent <- struct{}{} }
	p := New(cfg, testLog(t))
	if list := p.List(); list != (allocator.List{}) {
		t.Errorf("before Run: %+v", list)
	}
	kubelet := newFakeKubelet(t, cfg.Dir).start()
	runPlugin(t, p)
	r := kubelet.next()
	eventually(t, "stream", func() bool { return !p.List().Stream.IsZero() })
	if list := p.List(); !list.Sent.IsZero() {
		t.Errorf("before the first list: %+v", list)
	}

	p.Update(offer(bothWays))
	receive(t, sent, "a call of Sent after the first list")
	first := p.List()
	if first.Sent.IsZero() {
		t.Error("Sent was called without a list")
	}
	p.Resend()
	receive(t, sent, "a call of Sent after Resend")
	if again := p.List(); !again.Stream.Equal(first.Stream) || !again.Sent.After(first.Sent) {
		t.Errorf("%+v after %+v, want a later list on the same stream", again, first)
	}

	r.cancel()
	kubelet.next()
	receive(t, sent, "a call of Sent on the next stream")
	awaitList(t, p, first.Stream, first.Sent)
}

func TestListOfNewestStream(t *testing.T) {
	r, p := connect(t, offer(bothWays))
	first := awaitList(t, p, time.Time{}, time.Time{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := r.client.ListAndWatch(ctx, &api.Empty{}); err != nil {
		t.Fatal(err)
	}
	newer := awaitList(t, p, first.Stream, first.Sent)
	cancel()
	eventually(t, "return to the older stream", func() bool { return p.List().Stream.Equal(first.Stream) })
	p.Resend()
	eventually(t, "list on the older stream", func() bool { return p.List().Sent.After(newer.Sent) })
}

func TestListAfterStop(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	p, stop := start(t, dir)
	checkRegistration(t, kubelet.next())
	stop()
	if list := p.List(); list != (allocator.List{}) {
		t.Errorf("after the stop: %+v", list)
	}
}
