package vcuda

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/gpucdi/gpucdi/cluster"
)

const (
	// unusedFor is the time after which a template that no pod refers to is deleted.
	unusedFor = time.Hour
	// renewInterval is the interval between renewals of the lease, and between attempts to acquire it.
	renewInterval = 3 * time.Second
	// leadTimeout is the time since the start of the last renewal after which the Controller stops acting. It is shorter
	// than cluster.LeaseDuration, after which another Controller may act.
	leadTimeout = 10 * time.Second
	// retryInterval and maxRetryInterval bound the time until a failed creation of a template is retried.
	retryInterval    = 5 * time.Second
	maxRetryInterval = 2 * time.Minute
	// minWatch is the duration from which a watch of pods counts as successful.
	minWatch = 5 * time.Second
	// minBackoff and maxBackoff bound the time between attempts to list and watch pods.
	minBackoff = time.Second
	maxBackoff = 30 * time.Second
)

// Config configures a Controller.
type Config struct {
	API    API
	Lease  Lease
	Driver string // name of the DRA driver: "gpu.nvidia.com"
	Class  string // name of the DeviceClass of all templates
}

// API is the part of the API server that a Controller uses. *cluster.Client implements it.
type API interface {
	FollowPods(ctx context.Context, selector string, listed func([]cluster.ClaimingPod), changed func(pod cluster.ClaimingPod, deleted bool)) error
	ClaimTemplates(ctx context.Context, selector string) ([]cluster.ClaimTemplate, error)
	CreateClaimTemplate(ctx context.Context, namespace string, template any) error
	DeleteClaimTemplate(ctx context.Context, t cluster.ClaimTemplate) error
}

// Lease elects one of several Controllers. *cluster.Lease implements it.
type Lease interface {
	Renew(ctx context.Context) (held bool, err error)
	Release(ctx context.Context) error
}

var (
	_ API   = (*cluster.Client)(nil)
	_ Lease = (*cluster.Lease)(nil)
)

// key identifies a template.
type key struct{ namespace, name string }

// Controller creates the templates that pods refer to, and deletes those that are unused.
type Controller struct {
	cfg Config
	log *slog.Logger

	pods    map[string]cluster.ClaimingPod // by UID
	created map[key]bool                   // templates created, found or refused since the pods were last listed
	existed map[key]bool                   // templates that the creation found since the pods were last listed
	foreign map[key]bool                   // templates of others, as last logged
	failing map[string]bool                // namespaces in which a creation has failed since the pods were last listed
	retry   map[string]time.Duration       // last delay before a retry, by namespace; reset when creations succeed
	unused  map[key]time.Time              // when sweep first found the template unused
}

// New returns a Controller that does nothing until Run is called.
func New(cfg Config, log *slog.Logger) *Controller {
	return &Controller{cfg: cfg, log: log, retry: map[string]time.Duration{}, unused: map[key]time.Time{}}
}

// Run creates and deletes templates while this process holds the lease, until ctx ends. It must be called once.
func (c *Controller) Run(ctx context.Context) {
	for ctx.Err() == nil {
		start := time.Now()
		renewing, cancel := context.WithTimeout(ctx, leadTimeout)
		held, err := c.cfg.Lease.Renew(renewing)
		cancel()
		switch {
		case err != nil && ctx.Err() == nil:
			c.log.Warn("lease not acquired, will retry", "err", err)
		case held:
			c.log.Info("lease acquired, creating templates")
			c.lead(ctx, start)
			continue
		}
		wait(ctx, renewInterval)
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewInterval)
	defer cancel()
	if err := c.cfg.Lease.Release(release); err != nil {
		c.log.Warn("lease not released, another controller takes over later", "err", err)
	}
}

// lead follows pods until the lease is lost or ctx ends. renewed is when the last renewal started.
func (c *Controller) lead(ctx context.Context, renewed time.Time) {
	leading, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.followPods(leading)
	}()
	for leading.Err() == nil {
		wait(leading, renewInterval)
		start := time.Now()
		renewing, cancel := context.WithDeadline(leading, renewed.Add(leadTimeout))
		held, err := c.cfg.Lease.Renew(renewing)
		cancel()
		switch {
		case held:
			renewed = start
		case err == nil || time.Since(renewed) >= leadTimeout:
			if ctx.Err() == nil {
				c.log.Warn("lease lost, creating no templates", "err", err)
			}
			stop()
		}
	}
	stop()
	<-done
}

// followPods follows pods until ctx ends.
func (c *Controller) followPods(ctx context.Context) {
	backoff := minBackoff
	for ctx.Err() == nil {
		start := time.Now()
		err := c.followOnce(ctx)
		if err == nil {
			c.sweep(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.log.Warn("pods not followed, will retry", "err", err, "in", backoff)
		case time.Since(start) >= minWatch:
			backoff = minBackoff
			continue
		}
		wait(ctx, backoff)
		backoff = min(2*backoff, maxBackoff)
	}
}

// followOnce follows pods until the watch ends, or until the retry of a failed creation is due: a new list repeats it.
func (c *Controller) followOnce(ctx context.Context) error {
	following, cancel := context.WithCancel(ctx)
	defer cancel()
	change := func(pod cluster.ClaimingPod, deleted bool) {
		// With ctx, not following: a retry that is due must not cancel another creation.
		if retry := c.change(ctx, pod, deleted); retry > 0 {
			time.AfterFunc(retry, cancel)
		}
	}
	return c.cfg.API.FollowPods(following, podLabel+"=true", func(pods []cluster.ClaimingPod) {
		maps.DeleteFunc(c.retry, func(namespace string, _ time.Duration) bool { return !c.failing[namespace] })
		c.pods, c.failing = map[string]cluster.ClaimingPod{}, map[string]bool{}
		c.created, c.existed = map[key]bool{}, map[key]bool{}
		for _, pod := range pods {
			change(pod, false)
		}
	}, change)
}

// change records a change of a pod, and creates the templates that the pod waits for. After a failure it returns the
// time until the retry, and creates no other templates in the same namespace until the pods are listed again, so that a
// namespace that fails slowly does not delay other namespaces.
func (c *Controller) change(ctx context.Context, pod cluster.ClaimingPod, deleted bool) (retry time.Duration) {
	if deleted {
		delete(c.pods, pod.UID)
		return 0
	}
	c.pods[pod.UID] = pod
	if !pod.Waiting {
		return 0
	}
	for _, name := range pod.Templates {
		k := key{pod.Namespace, name}
		request, ours := parseName(name)
		if !ours || c.created[k] {
			continue
		}
		if c.failing[k.namespace] || ctx.Err() != nil {
			return 0
		}
		err := c.cfg.API.CreateClaimTemplate(ctx, k.namespace, request.template(k.namespace, c.cfg.Driver, c.cfg.Class))
		switch {
		case err == nil:
			c.log.Info("template created", "namespace", k.namespace, "template", k.name, "pod", pod.Name)
		case errors.Is(err, cluster.ErrAlreadyExists):
			c.existed[k] = true
		case cluster.Refused(err): // for example because its namespace is being deleted; retried with the next list
			c.log.Warn("template refused by the API server", "template", k.name, "pod", pod.Name, "err", err)
		default:
			retry = min(max(2*c.retry[k.namespace], retryInterval), maxRetryInterval)
			c.log.Warn("template not created, will retry", "template", k.name, "pod", pod.Name, "err", err, "in", retry)
			c.failing[k.namespace], c.retry[k.namespace] = true, retry
			return retry
		}
		c.created[k] = true
	}
	return 0
}

// sweep deletes the templates that have been unused for unusedFor, and those with an outdated spec. If a waiting pod
// refers to one of them, the next list creates it again. A failure is only logged, since the next sweep retries.
func (c *Controller) sweep(ctx context.Context) {
	templates, err := c.cfg.API.ClaimTemplates(ctx, managedLabel+"="+managedValue)
	if err != nil {
		c.log.Warn("templates not listed", "err", err)
		return
	}
	used := map[key]bool{}
	for _, pod := range c.pods {
		for _, name := range pod.Templates {
			used[key{pod.Namespace, name}] = true
		}
	}
	unused, now := map[key]time.Time{}, time.Now()
	for _, t := range templates {
		k := key{t.Metadata.Namespace, t.Metadata.Name}
		since, found := c.unused[k]
		if !found {
			since = now
		}
		switch {
		case c.outdated(t):
			c.remove(ctx, t, "outdated")
		case used[k]:
		case now.Sub(since) < unusedFor || !c.remove(ctx, t, "unused"):
			unused[k] = since
		}
	}
	c.unused = unused
	c.reportForeign(templates)
}

// reportForeign logs the templates that pods wait for, but the controller did not create: a user may have created a
// template with such a name, and its claims may differ from the requests of the pods. managed are the controller's.
func (c *Controller) reportForeign(managed []cluster.ClaimTemplate) {
	for _, t := range managed {
		delete(c.existed, key{t.Metadata.Namespace, t.Metadata.Name})
	}
	for k := range c.existed {
		if c.foreign[k] {
			continue
		}
		c.log.Warn("template not created by gpucdi, its claims may differ from the requests of pods", "namespace", k.namespace, "template", k.name,
			"remedy", "delete the template")
	}
	c.foreign = maps.Clone(c.existed)
}

// outdated reports whether the controller would create the template with another spec.
func (c *Controller) outdated(t cluster.ClaimTemplate) bool {
	request, ours := parseName(t.Metadata.Name)
	return ours && request.template("", c.cfg.Driver, c.cfg.Class).Metadata.Labels[hashLabel] != t.Metadata.Labels[hashLabel]
}

func (c *Controller) remove(ctx context.Context, t cluster.ClaimTemplate, reason string) (removed bool) {
	log := c.log.With("namespace", t.Metadata.Namespace, "template", t.Metadata.Name, "reason", reason)
	if err := c.cfg.API.DeleteClaimTemplate(ctx, t); err != nil {
		log.Warn("template not deleted", "err", err)
		return false
	}
	log.Info("template deleted")
	return true
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
