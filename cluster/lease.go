package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// LeaseDuration is the time for which a Lease is held without a renewal.
const LeaseDuration = 15 * time.Second

// Lease elects one of several processes as its holder. The holder renews the lease. Another process takes it over after
// seeing no renewal for LeaseDuration, measured by that process's clock. A Lease is not safe for concurrent use.
type Lease struct {
	client          *Client
	namespace, name string
	holder          string // unique to this process

	seen   leaseObject // last version
	seenAt time.Time   // when that version was first seen
}

// leaseObject is a Lease of coordination.k8s.io/v1.
type leaseObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name            string `json:"name"`
		Namespace       string `json:"namespace"`
		ResourceVersion string `json:"resourceVersion,omitempty"`
	} `json:"metadata"`
	Spec leaseSpec `json:"spec"`
}

type leaseSpec struct {
	Holder      string `json:"holderIdentity"`
	Seconds     int    `json:"leaseDurationSeconds"`
	Acquired    string `json:"acquireTime,omitempty"`
	Renewed     string `json:"renewTime,omitempty"`
	Transitions int    `json:"leaseTransitions"`
}

// microTime is the format of the times of a Lease.
const microTime = "2006-01-02T15:04:05.000000Z07:00"

// NewLease returns a lease that is not held. holder must be unique, such as the name of the pod.
func NewLease(client *Client, namespace, name, holder string) *Lease {
	return &Lease{client: client, namespace: namespace, name: name, holder: holder}
}

func (l *Lease) path() string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + url.PathEscape(l.namespace) + "/leases"
}

// Renew acquires or renews the lease, and reports whether this process holds it. If so, the process may act as the
// holder for less than LeaseDuration from the start of the call, unless a later call extends this time.
func (l *Lease) Renew(ctx context.Context) (held bool, err error) {
	if held, err = l.renew(ctx); err != nil {
		return false, fmt.Errorf("renewing lease %s/%s: %w", l.namespace, l.name, err)
	}
	return held, nil
}

func (l *Lease) renew(ctx context.Context) (held bool, err error) {
	current, err := l.read(ctx)
	if errors.Is(err, ErrNotFound) {
		return l.write(ctx, leaseObject{})
	}
	if err != nil {
		return false, err
	}
	if current.Metadata.ResourceVersion != l.seen.Metadata.ResourceVersion {
		l.seen, l.seenAt = current, time.Now()
	}
	if holder := current.Spec.Holder; holder != "" && holder != l.holder && time.Since(l.seenAt) < LeaseDuration {
		return false, nil
	}
	return l.write(ctx, current)
}

func (l *Lease) read(ctx context.Context) (current leaseObject, err error) {
	err = get(ctx, l.client.reuse, l.client.host+l.path()+"/"+url.PathEscape(l.name), "application/json", objectLimit, &current)
	return current, err
}

// write replaces the current version of the lease, or creates the lease if it has no version. held is false if another
// process was faster.
func (l *Lease) write(ctx context.Context, current leaseObject) (held bool, err error) {
	now := time.Now().UTC().Format(microTime)
	next := current
	next.APIVersion, next.Kind, next.Metadata.Name, next.Metadata.Namespace = "coordination.k8s.io/v1", "Lease", l.name, l.namespace
	if next.Spec.Holder != l.holder {
		next.Spec.Holder, next.Spec.Acquired = l.holder, now
		next.Spec.Transitions++
	}
	next.Spec.Seconds, next.Spec.Renewed = int(LeaseDuration.Seconds()), now
	method, path := http.MethodPut, l.path()+"/"+url.PathEscape(l.name)
	if current.Metadata.ResourceVersion == "" {
		method, path = http.MethodPost, l.path()
	}
	var stored leaseObject
	err = l.client.exchangeObject(ctx, method, path+"?fieldManager="+fieldManager, next, &stored)
	switch {
	case statusCode(err) == http.StatusConflict:
		return false, nil
	case err != nil:
		return false, err
	}
	l.seen, l.seenAt = stored, time.Now()
	return true, nil
}

// Release lets another process acquire the lease immediately. It does nothing if this process does not hold the lease.
func (l *Lease) Release(ctx context.Context) error {
	if l.seen.Spec.Holder != l.holder {
		return nil
	}
	released := l.seen
	released.Spec.Holder = ""
	err := l.client.exchangeObject(ctx, http.MethodPut, l.path()+"/"+url.PathEscape(l.name)+"?fieldManager="+fieldManager, released, nil)
	if err != nil && statusCode(err) != http.StatusConflict {
		return fmt.Errorf("releasing lease %s/%s: %w", l.namespace, l.name, err)
	}
	return nil
}
