package cluster

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Event is a Kubernetes Event of the node or of a ResourceClaim.
type Event struct {
	Type    EventType
	Reason  string // CamelCase, for filtering: "GPUUnhealthy"
	Message string // human-readable

	Claim ClaimRef // which the Event is about; zero: it is about the node

	// Routine is set if the Event is not urgent and may occur on all nodes at the same time, as in a rollout of the
	// driver. It then waits for the client's slot; see Client.Spread.
	Routine bool
}

// ClaimRef identifies a ResourceClaim.
type ClaimRef struct{ Namespace, Name, UID string }

// EventType is the type of a Kubernetes Event.
type EventType string

// Values of EventType.
const (
	Normal  EventType = "Normal"
	Warning EventType = "Warning"
)

// nodeNamespace is the namespace for Events of cluster-scoped objects such as nodes.
const nodeNamespace = "default"

// messageLimit bounds a message, in bytes. It is the maximum of the API group events.k8s.io.
const messageLimit = 1024

// eventObject is an Event of core/v1.
type eventObject struct {
	APIVersion     string    `json:"apiVersion"`
	Kind           string    `json:"kind"`
	Metadata       metadata  `json:"metadata"`
	InvolvedObject reference `json:"involvedObject"`

	Type    EventType `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`

	Source    source    `json:"source"`
	Component string    `json:"reportingComponent"`
	Instance  string    `json:"reportingInstance"`
	First     time.Time `json:"firstTimestamp"`
	recurrence
}

// recurrence has the fields that change when an Event recurs.
type recurrence struct {
	Count int       `json:"count"`
	Last  time.Time `json:"lastTimestamp"`
}

type metadata struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

type reference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

type source struct {
	Component string `json:"component"`
	Host      string `json:"host"`
}

// newEventObject returns the object for an Event that occurred at a time.
func newEventObject(node string, e Event, at time.Time) eventObject {
	at = at.UTC().Truncate(time.Second) // the API's precision
	// The kubelet uses the node name as the UID in Events, and kubectl describe node selects them by it.
	about := reference{APIVersion: "v1", Kind: "Node", Name: node, UID: node}
	if e.Claim != (ClaimRef{}) {
		about = reference{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim", Namespace: e.Claim.Namespace, Name: e.Claim.Name, UID: e.Claim.UID}
	}
	return eventObject{
		APIVersion:     "v1",
		Kind:           "Event",
		Metadata:       metadata{Name: eventName(node, time.Now()), Namespace: cmp.Or(about.Namespace, nodeNamespace)},
		InvolvedObject: about,
		Type:           e.Type,
		Reason:         e.Reason,
		Message:        strings.ToValidUTF8(e.Message[:min(len(e.Message), messageLimit)], ""), // drops a truncated character
		Source:         source{Component: "gpucdi", Host: node},
		Component:      "gpucdi",
		Instance:       node,
		First:          at,
		recurrence:     recurrence{Count: 1, Last: at},
	}
}

// eventName returns a unique name. The names of Events, like node names, have at most 253 bytes.
func eventName(node string, now time.Time) string {
	node = strings.TrimRight(node[:min(len(node), 200)], ".-")
	return fmt.Sprintf("%s.gpucdi.%x", node, now.UnixNano())
}

func (c *Client) createEvent(ctx context.Context, o eventObject) error {
	return c.do(ctx, http.MethodPost, "application/json", o, eventsPath(o.Metadata.Namespace))
}

// updateEvent updates an Event of the node.
func (c *Client) updateEvent(ctx context.Context, name string, r recurrence) error {
	return c.do(ctx, http.MethodPatch, "application/merge-patch+json", r, eventsPath(nodeNamespace)+"/"+name)
}

func eventsPath(namespace string) string {
	return "/api/v1/namespaces/" + url.PathEscape(namespace) + "/events"
}
