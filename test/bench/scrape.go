package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	scrapeCount = 10
	// scrapePause is the time between scrapes, after which the agent lists the pods again.
	scrapePause = 1500 * time.Millisecond
	// podCount is the number of pods that the kubelet lists.
	podCount = 50
)

// podLister is a pod resources API with podCount pods, the first of which hold the devices.
type podLister struct {
	podresources.UnimplementedPodResourcesListerServer
	devices []string
}

func (p *podLister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	list := &podresources.ListPodResourcesResponse{}
	for i := range podCount {
		c := &podresources.ContainerResources{Name: "main"}
		if i < len(p.devices) {
			c.Devices = []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: p.devices[i : i+1]}}
		}
		list.PodResources = append(list.PodResources, &podresources.PodResources{
			Namespace: "default", Name: fmt.Sprintf("pod-%d", i), Containers: []*podresources.ContainerResources{c},
		})
	}
	return list, nil
}

// listenPods serves the pod resources API for the plugin's devices until stop is called.
func listenPods(ctx context.Context, p *plugin) (stop func(), err error) {
	socket := filepath.Join(p.kubeletDir(), "pod-resources", "kubelet.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, fmt.Errorf("creating the kubelet's directory: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listening as the kubelet: %w", err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, &podLister{devices: p.devices})
	go func() { _ = server.Serve(listener) }() // until stop
	return server.Stop, nil
}

// scrapes measures the duration of a scrape.
func (b *bench) scrapes(ctx context.Context) (err error) {
	a, err := b.nodes.eight.serve(ctx, b.agent)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	stop, err := listenPods(ctx, a)
	if err != nil {
		return err
	}
	defer stop()
	var took []time.Duration
	for range scrapeCount {
		if err := sleep(ctx, scrapePause); err != nil {
			return err
		}
		t, err := timed(func() error { return a.scrape(ctx) })
		if err != nil {
			return err
		}
		took = append(took, t)
	}
	b.pluginTable.add(fmt.Sprintf("scrape, 8 GPUs and %d pods", podCount), typical(took), figure{}, atMost("20 ms", 20*time.Millisecond))
	return nil
}

func (p *plugin) scrape(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/metrics", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("scraping the agent: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("scraping the agent: %s", response.Status)
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return fmt.Errorf("scraping the agent: %w", err)
	}
	return nil
}

// freeAddress returns a loopback address with a TCP port that was free a moment ago.
func freeAddress(ctx context.Context) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("finding a free port: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}
