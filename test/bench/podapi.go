package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/test/node/images"
)

// Paths of the API.
const (
	podsPath      = "/api/v1/namespaces/default/pods"
	claimsPath    = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
	templatesPath = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
)

// endpoint is an HTTP server in the box.
type endpoint struct {
	client *http.Client
	url    string
	token  string // empty: no authentication
}

// podAPI creates and deletes pods and ResourceClaims through a kubectl proxy in the box, so that a request does not
// start a process.
type podAPI struct{ endpoint }

func (n *podNode) startPodAPI(ctx context.Context) (*podAPI, error) {
	const socket = "/run/bench.sock"
	// The proxy ends with the box.
	proxy := n.Box.Command(context.WithoutCancel(ctx), "kubectl", "proxy", "--unix-socket", socket)
	if err := proxy.Start(); err != nil {
		return nil, fmt.Errorf("starting kubectl proxy: %w", err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", n.Box.Path(socket))
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: time.Minute}
	a := &podAPI{endpoint{client: client, url: "http://localhost"}}
	var lastErr error
	err := poll(ctx, "kubectl proxy", time.Minute, func() (bool, error) {
		_, lastErr = a.list(ctx, podsPath)
		return lastErr == nil, nil
	})
	return a, errors.Join(err, lastErr)
}

// do sends a request, with an object as JSON unless it is nil, and returns the body of the response.
func (e *endpoint) do(ctx context.Context, method, path string, object any) ([]byte, error) {
	response, err := e.send(ctx, method, path, object)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	return text, err
}

func (e *endpoint) send(ctx context.Context, method, path string, object any) (*http.Response, error) {
	var body io.Reader
	if object != nil {
		text, err := json.Marshal(object)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, e.url+path, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if e.token != "" {
		request.Header.Set("Authorization", "Bearer "+e.token)
	}
	return e.client.Do(request)
}

// watch watches the objects at a path until ctx ends, and reads its events in the background.
func (e *endpoint) watch(ctx context.Context, path string, read func(events io.Reader)) error {
	response, err := e.send(ctx, http.MethodGet, path+"?watch=true", nil)
	if err != nil {
		return fmt.Errorf("watching %s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("watching %s: %s", path, response.Status), response.Body.Close())
	}
	go func() {
		defer response.Body.Close()
		read(response.Body)
	}()
	return nil
}

type object = map[string]any

// create creates a pod that requests a device of a stack, or no device if the stack has none. A stack with claims
// requires a claim template with the name of the pod.
func (a *podAPI) create(ctx context.Context, name string, s stack) error {
	resources, spec := object{}, object{}
	switch {
	case s.claims:
		resources = object{"claims": []object{{"name": "gpu"}}}
		spec["resourceClaims"] = []object{{"name": "gpu", "resourceClaimTemplateName": name}}
	case s.devices > 0:
		resources = object{"limits": object{gpuResource: "1"}}
	}
	if s.class != "" {
		spec["runtimeClassName"] = s.class
	}
	return a.createPod(ctx, name, resources, spec)
}

// createPod creates a pod whose container has resources, with more fields of its spec.
func (a *podAPI) createPod(ctx context.Context, name string, resources, fields object) error {
	spec := object{
		// With 0 the pod would be removed from the API before its container has ended.
		"terminationGracePeriodSeconds": 1,
		"restartPolicy":                 "Never",
		"containers": []object{{
			"name": "main", "image": images.DebianName, "imagePullPolicy": "Never", "command": []string{"sleep", "infinity"},
			"resources": resources,
		}},
	}
	maps.Copy(spec, fields)
	_, err := a.do(ctx, http.MethodPost, podsPath,
		object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name}, "spec": spec})
	return err
}

// template creates a ResourceClaimTemplate for one GPU, with more fields of the request.
func (a *podAPI) template(ctx context.Context, name string, fields object) error {
	request := object{"deviceClassName": deviceClass}
	maps.Copy(request, fields)
	spec := object{"devices": object{"requests": []object{{"name": "gpu", "exactly": request}}}}
	_, err := a.do(ctx, http.MethodPost, templatesPath,
		object{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": object{"name": name, "labels": object{"bench": ""}}, "spec": object{"spec": spec}})
	return err
}

// list returns the objects at a path as JSON.
func (a *podAPI) list(ctx context.Context, path string) ([]json.RawMessage, error) {
	text, err := a.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	var list struct{ Items []json.RawMessage }
	return list.Items, json.Unmarshal(text, &list)
}

// deleteAll deletes all pods, and then all claims and the templates of the bench, and waits until they are gone.
func (a *podAPI) deleteAll(ctx context.Context) error {
	for _, path := range []string{podsPath, claimsPath, templatesPath + "?labelSelector=bench"} {
		if _, err := a.do(ctx, http.MethodDelete, path, nil); err != nil {
			return err
		}
		err := poll(ctx, "the deletion of "+path, burstTimeout, func() (bool, error) {
			left, err := a.list(ctx, path)
			return len(left) == 0, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// A started container is one whose process runs.
type started struct {
	pod, id string
	at      time.Time
}

// containerEvents receives the starts of containers, except sandboxes, from the container runtime.
type containerEvents struct {
	conn    *grpc.ClientConn
	cancel  context.CancelFunc
	started chan started
}

// watchContainers watches the container runtime at a socket until close.
func watchContainers(ctx context.Context, socket string) (*containerEvents, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connecting to the container runtime: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	e := &containerEvents{conn: conn, cancel: cancel, started: make(chan started, 1000)}
	stream, err := cri.NewRuntimeServiceClient(conn).GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	go func() {
		defer close(e.started)
		for {
			event, err := stream.Recv()
			if err != nil {
				return // closed
			}
			sandbox := event.GetPodSandboxStatus()
			if event.GetContainerEventType() == cri.ContainerEventType_CONTAINER_STARTED_EVENT && event.GetContainerId() != sandbox.GetId() {
				e.started <- started{sandbox.GetMetadata().GetName(), event.GetContainerId(), time.Unix(0, event.GetCreatedAt())}
			}
		}
	}()
	return e, nil
}

func (e *containerEvents) close() error {
	e.cancel()
	return e.conn.Close()
}

// next waits for the start of the next container.
func (e *containerEvents) next(ctx context.Context) (started, error) {
	select {
	case <-ctx.Done():
		return started{}, fmt.Errorf("waiting for a container to start: %w", ctx.Err())
	case s, ok := <-e.started:
		if !ok {
			return s, errors.New("the container runtime ended the stream of events")
		}
		return s, nil
	}
}

// poll calls check twice a second until it returns true or an error.
func poll(ctx context.Context, what string, timeout time.Duration, check func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		if ok, err := check(); ok || err != nil {
			return err
		}
		if err := sleep(ctx, 500*time.Millisecond); err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
	}
}

// exited returns nil for the exit status of a process that was stopped, and other errors unchanged.
func exited(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) || errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}
