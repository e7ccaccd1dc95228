package cluster

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Event is something that happened to the node.
type Event struct {
	Type    EventType
	Reason  string // one word, "GPUUnhealthy": what people filter by
	Message string // a sentence
}

// EventType is Kubernetes' type of an Event.
type EventType string

// The types.
const (
	Normal  EventType = "Normal"
	Warning EventType = "Warning"
)

// eventNamespace holds the Events of objects that are in no namespace, as
// nodes are.
const (
	eventNamespace = "default"
	eventsPath     = "/api/v1/namespaces/" + eventNamespace + "/events"
)

// messageLimit is what the API server takes, in bytes.
const messageLimit = 1024

// object is an Event as the API, core/v1, has it.
type object struct {
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
	again
}

// again is what changes when an Event happens once more.
type again struct {
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
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

type source struct {
	Component string `json:"component"`
	Host      string `json:"host"`
}

// newObject makes the Event of a node at a moment.
func newObject(node string, e Event, at time.Time) object {
	at = at.UTC().Truncate(time.Second) // the API's precision
	return object{
		APIVersion: "v1",
		Kind:       "Event",
		Metadata:   metadata{Name: fmt.Sprintf("%s.gpucdi.%x", node, time.Now().UnixNano()), Namespace: eventNamespace},
		// The kubelet gives a node's name as its UID too, and kubectl describe
		// node looks for that.
		InvolvedObject: reference{APIVersion: "v1", Kind: "Node", Name: node, UID: node},
		Type:           e.Type,
		Reason:         e.Reason,
		Message:        strings.ToValidUTF8(e.Message[:min(len(e.Message), messageLimit)], ""), // cut between characters
		Source:         source{Component: "gpucdi", Host: node},
		Component:      "gpucdi",
		Instance:       node,
		First:          at,
		again:          again{Count: 1, Last: at},
	}
}

func (c *Client) create(ctx context.Context, o object) error {
	return c.do(ctx, http.MethodPost, "application/json", o, eventsPath)
}

func (c *Client) repeat(ctx context.Context, name string, a again) error {
	return c.do(ctx, http.MethodPatch, "application/merge-patch+json", a, eventsPath+"/"+name)
}
