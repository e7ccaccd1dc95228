package vcuda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucdi/gpucdi/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeAPI has pods and templates in memory. A watch of pods takes two minutes.
type fakeAPI struct {
	mu        sync.Mutex
	pods      map[string]cluster.ClaimingPod
	templates map[key]template
	events    chan cluster.ClaimingPod
	fail      map[string]error // of creations, by namespace
	closing   bool             // watches end immediately
	creations int
	follows   int
}

func newFakeAPI() *fakeAPI {
	return &fakeAPI{pods: map[string]cluster.ClaimingPod{}, templates: map[key]template{}, events: make(chan cluster.ClaimingPod, 1000)}
}

func (f *fakeAPI) FollowPods(ctx context.Context, selector string, listed func([]cluster.ClaimingPod), changed func(cluster.ClaimingPod, bool)) error {
	if selector != "gpucdi.dev/vcuda=true" {
		return fmt.Errorf("selector %s", selector)
	}
	f.mu.Lock()
	f.follows++
	var all []cluster.ClaimingPod
	for _, p := range f.pods {
		all = append(all, p)
	}
	f.mu.Unlock()
	listed(all)
	end := time.After(2 * time.Minute)
	if f.closing {
		return nil
	}
	for {
		select {
		case p := <-f.events:
			f.mu.Lock()
			_, exists := f.pods[p.UID]
			f.mu.Unlock()
			changed(p, !exists)
		case <-end:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *fakeAPI) ClaimTemplates(_ context.Context, selector string) (all []cluster.ClaimTemplate, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, template := range f.templates {
		if managedLabel+"="+template.Metadata.Labels[managedLabel] != selector {
			continue
		}
		var t cluster.ClaimTemplate
		t.Metadata.Namespace, t.Metadata.Name, t.Metadata.Labels = k.namespace, k.name, template.Metadata.Labels
		all = append(all, t)
	}
	return all, nil
}

func (f *fakeAPI) CreateClaimTemplate(_ context.Context, namespace string, object any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.creations++
	k := key{namespace, object.(template).Metadata.Name}
	switch {
	case f.fail[namespace] != nil:
		return f.fail[namespace]
	case f.templates[k].Metadata.Name != "":
		return cluster.ErrAlreadyExists
	}
	f.templates[k] = object.(template)
	return nil
}

func (f *fakeAPI) DeleteClaimTemplate(_ context.Context, t cluster.ClaimTemplate) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.templates, key{t.Metadata.Namespace, t.Metadata.Name})
	return nil
}

func (f *fakeAPI) add(name string, templates ...string) {
	f.put(cluster.ClaimingPod{Namespace: "team", Name: name, UID: name, Templates: templates, Waiting: true})
}

func (f *fakeAPI) put(p cluster.ClaimingPod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pods[p.UID] = p
	f.events <- p
}

func (f *fakeAPI) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pods[name]
	delete(f.pods, name)
	f.events <- p
}

func (f *fakeAPI) counts() (creations, follows int) {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.creations, f.follows
}

func (f *fakeAPI) has(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	var got []string
	for k := range f.templates {
		got = append(got, k.name)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("templates %v, want %v", got, want)
	}
}

// An API server that closes each watch early gets fewer and fewer requests.
func TestWatchEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.closing = true
		defer run(t, api, newLease())()
		time.Sleep(10 * time.Minute)
		if _, follows := api.counts(); follows < 10 || follows > 30 {
			t.Errorf("pods were listed %d times", follows)
		}
	})
}

// fakeLease is held by the Controller whose name is the holder.
type fakeLease struct {
	mu   *sync.Mutex
	name string
	*leaseState
}

type leaseState struct {
	holder string
	err    error
	delay  time.Duration // of Renew
}

func (l fakeLease) Renew(ctx context.Context) (bool, error) {
	l.mu.Lock()
	delay := l.delay
	l.mu.Unlock()
	if wait(ctx, delay); ctx.Err() != nil {
		return false, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return false, l.err
	}
	if l.holder == "" {
		l.holder = l.name
	}
	return l.holder == l.name, nil
}

func (l fakeLease) Release(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holder == l.name {
		l.holder = ""
	}
	return nil
}

// run runs a Controller until the returned function is called.
func run(t *testing.T, api API, lease Lease) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	c := New(Config{API: api, Lease: lease, Driver: "gpu.nvidia.com", Class: "gpu.nvidia.com"}, slog.New(slog.DiscardHandler))
	go func() { defer close(ended); c.Run(ctx) }()
	return func() { cancel(); <-ended }
}

func newLease() fakeLease { return fakeLease{new(sync.Mutex), "a", &leaseState{}} }

// A template is created for the first pod that waits for it, and deleted an hour after the last one.
func TestTemplatesFollowPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.add("before", "vcuda-c10-m1000")
		defer run(t, api, newLease())()
		api.has(t, "vcuda-c10-m1000")
		for i := range 100 {
			api.add(fmt.Sprint("pod-", i), "vcuda-c30-m4000", "other", "vcuda-c150")
		}
		api.has(t, "vcuda-c10-m1000", "vcuda-c30-m4000")
		if creations, _ := api.counts(); creations != 2 {
			t.Errorf("%d creations, want 2", creations)
		}
		api.remove("before")
		for i := range 100 {
			api.remove(fmt.Sprint("pod-", i))
		}
		time.Sleep(unusedFor - 5*time.Minute)
		api.has(t, "vcuda-c10-m1000", "vcuda-c30-m4000")
		api.add("next", "vcuda-c30-m4000")
		time.Sleep(10 * time.Minute)
		api.has(t, "vcuda-c30-m4000")
	})
}

// Templates with another DeviceClass are replaced, and deleted if no pod refers to them.
func TestOutdatedTemplates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.add("a", "vcuda-c100")
		api.add("b", "vcuda-c30-m4000")
		for _, name := range []string{"vcuda-c100", "vcuda-c30-m4000", "vcuda-c50-m1000"} {
			request, _ := parseName(name)
			api.templates[key{"team", name}] = request.template("team", "gpu.nvidia.com", "former")
		}
		api.templates[key{"team", "vcuda-other"}] = template{Metadata: templateMetadata{Name: "vcuda-other"}}
		defer run(t, api, newLease())()
		time.Sleep(5 * time.Minute)
		api.has(t, "vcuda-c100", "vcuda-c30-m4000", "vcuda-other")
		for k, template := range api.templates {
			if k.name != "vcuda-other" && template.Spec.Spec.Devices.Requests[0].Exactly.Class != "gpu.nvidia.com" {
				t.Errorf("%s has another class", k.name)
			}
		}
	})
}

// A template of a user that pods wait for is reported, not replaced. Those of an earlier controller are not reported.
func TestForeignTemplate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		for _, name := range []string{"vcuda-c100", "vcuda-c200"} {
			api.add(name, name)
			request, _ := parseName(name)
			api.templates[key{"team", name}] = request.template("team", "gpu.nvidia.com", "gpu.nvidia.com")
		}
		delete(api.templates[key{"team", "vcuda-c200"}].Metadata.Labels, managedLabel)
		var log bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		New(Config{API: api, Lease: newLease(), Driver: "gpu.nvidia.com", Class: "gpu.nvidia.com"}, slog.New(slog.NewTextHandler(&log, nil))).Run(ctx)
		api.has(t, "vcuda-c100", "vcuda-c200")
		const want = "namespace=team template=vcuda-c200"
		if got := log.String(); !strings.Contains(got, "template not created by gpucdi") || !strings.Contains(got, want) || strings.Contains(got, "vcuda-c100") {
			t.Errorf("log %s", got)
		}
	})
}

// A deleted template that a pod waits for is created again.
func TestDeletedTemplate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.add("a", "vcuda-c100")
		defer run(t, api, newLease())()
		api.has(t, "vcuda-c100")
		api.mu.Lock()
		clear(api.templates)
		api.mu.Unlock()
		time.Sleep(3 * time.Minute)
		api.has(t, "vcuda-c100")
	})
}

// A failed creation of a template is retried, less and less often while its namespace fails. Meanwhile pods of other
// namespaces get theirs immediately.
func TestCreationFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.fail = map[string]error{"team": errors.New("webhook is down")}
		for i := range 10 {
			api.add(fmt.Sprint("failing-", i), fmt.Sprintf("vcuda-c%d-m1000", i+1))
		}
		defer run(t, api, newLease())()
		api.put(cluster.ClaimingPod{Namespace: "other", UID: "other", Templates: []string{"vcuda-c200"}, Waiting: true})
		api.has(t, "vcuda-c200")
		if creations, _ := api.counts(); creations != 2 {
			t.Errorf("%d attempts, want one for each namespace", creations)
		}
		time.Sleep(time.Minute)
		if creations, follows := api.counts(); creations != 8 || follows != 4 { // at the start, and after 5, 15 and 35 s
			t.Errorf("%d attempts and %d lists", creations, follows)
		}
		api.mu.Lock()
		api.fail["later"] = api.fail["team"]
		api.mu.Unlock()
		api.put(cluster.ClaimingPod{Namespace: "later", UID: "later", Templates: []string{"vcuda-c300"}, Waiting: true})
		synctest.Wait()
		api.mu.Lock()
		delete(api.fail, "later")
		api.mu.Unlock()
		time.Sleep(retryInterval + time.Second)
		api.has(t, "vcuda-c200", "vcuda-c300")
		api.mu.Lock()
		api.fail = nil
		clear(api.templates)
		api.mu.Unlock()
		time.Sleep(maxRetryInterval)
		want := []string{"vcuda-c200", "vcuda-c300"}
		for i := range 10 {
			want = append(want, fmt.Sprintf("vcuda-c%d-m1000", i+1))
		}
		slices.Sort(want)
		api.has(t, want...)
	})
}

// Only the holder of the lease acts. When the holder ends, another Controller takes over. A holder that cannot renew
// the lease stops acting.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, state, mu := newFakeAPI(), &leaseState{}, new(sync.Mutex)
		stopFirst := run(t, api, fakeLease{mu, "first", state})
		synctest.Wait()
		stopSecond := run(t, api, fakeLease{mu, "second", state})
		time.Sleep(time.Minute)
		if _, follows := api.counts(); follows != 1 {
			t.Errorf("%d controllers follow pods", follows)
		}
		stopFirst()
		time.Sleep(2 * renewInterval)
		if api.add("a", "vcuda-c100"); state.holder != "second" {
			t.Errorf("the lease is held by %q", state.holder)
		}
		api.has(t, "vcuda-c100")
		mu.Lock()
		state.err = errors.New("no API server")
		mu.Unlock()
		time.Sleep(leadTimeout + renewInterval)
		api.add("b", "vcuda-c200")
		api.has(t, "vcuda-c100")
		mu.Lock()
		state.err = nil
		mu.Unlock()
		time.Sleep(2 * renewInterval)
		api.has(t, "vcuda-c100", "vcuda-c200")
		stopSecond()
		if state.holder != "" {
			t.Errorf("the lease is held by %q after the end", state.holder)
		}
	})
}

// A lease whose acquisition took longer than leadTimeout is not used: another Controller may have taken it over.
func TestSlowLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, lease := newFakeAPI(), newLease()
		lease.delay = cluster.LeaseDuration
		defer run(t, api, lease)()
		time.Sleep(2 * cluster.LeaseDuration)
		if _, follows := api.counts(); follows > 0 {
			t.Error("pods were listed")
		}
		lease.mu.Lock()
		lease.delay = 0
		lease.mu.Unlock()
		time.Sleep(2 * leadTimeout)
		if _, follows := api.counts(); follows != 1 {
			t.Errorf("pods were listed %d times", follows)
		}
	})
}
