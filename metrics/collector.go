package metrics

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpucdi/gpucdi/status"
)

// statusTimeout bounds the time to get the status.
const statusTimeout = 5 * time.Second

// collector collects the metrics of a node's status. It also removes the XID counters of GPUs that the node no longer
// has.
type collector struct {
	node func(context.Context) status.Node
	xids *xids
}

var (
	buildInfo    = describe("gpucdi_build_info", "Version of the agent. The value is always 1.", "version")
	reloaded     = describe("gpucdi_config_last_reload_successful", "1 if the config file is in effect, 0 if its last reload failed.")
	loaded       = describe("gpucdi_config_last_reload_success_timestamp_seconds", "Time of the last successful config reload, in seconds since the epoch.")
	components   = describe("gpucdi_component_healthy", "1 if a component between the driver and the pods is healthy: driver, spec, runtime, kubelet, dra, slices or nri.", "component")
	devices      = describe("gpucdi_devices", "GPUs and MIG devices by health, independent of sharing: healthy, unhealthy with the fault code as the reason, or draining for both draining and waiting devices, which a planned change makes unavailable.", "resource", "health", "reason")
	free         = describe("gpucdi_devices_free", "Healthy GPUs and MIG devices that are not allocated to a container.", "resource")
	replicas     = describe("gpucdi_replicas", "Replicas of healthy GPUs and MIG devices, each for one container. A device that is not shared counts as one.", "resource")
	freeReplicas = describe("gpucdi_replicas_free", "Replicas of healthy GPUs and MIG devices that are not allocated to a container.", "resource")
	allocated    = describe("gpucdi_device_allocated", "1 for each GPU or MIG device that is allocated to a container, as reported by the kubelet; claim is empty unless a ResourceClaim allocated it.",
		"resource", "device", "gpu", "namespace", "pod", "container", "claim")

	unreadable = describe("gpucdi_unreadable_devices", "GPUs and MIG devices without a valid UUID, for example because they do not respond, which cannot be advertised.")
	gpuHealthy = describe("gpucdi_gpu_healthy", "1 if a GPU and its MIG devices are healthy, else 0 with the fault code of docs/health.md.", "gpu", "code")

	gpuInfo     = describe("gpucdi_gpu_info", "Properties of a GPU. The value is always 1.", "gpu", "index", "product", "pci_bus_id", "driver")
	memoryBytes = describe("gpucdi_gpu_memory_bytes", "Total memory of a GPU.", "gpu")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (c collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range slices.Concat([]*prometheus.Desc{buildInfo, reloaded, loaded, components, devices, free, replicas, freeReplicas,
		allocated, unreadable, gpuHealthy, gpuInfo, memoryBytes}, measurementDescs(), shareDescs()) {
		descs <- d
	}
}

// sink receives the metrics of one scrape.
type sink chan<- prometheus.Metric

// metric sends a metric. It removes invalid UTF-8 from label values, which may come from hardware, because Prometheus
// rejects it.
func (s sink) metric(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
	for i := range labels {
		labels[i] = strings.ToValidUTF8(labels[i], "")
	}
	s <- prometheus.MustNewConstMetric(d, kind, value, labels...)
}

func (s sink) gauge(d *prometheus.Desc, value float64, labels ...string) {
	s.metric(d, prometheus.GaugeValue, value, labels...)
}

// Collect implements prometheus.Collector.
func (c collector) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout) //nolint:forbidigo // prometheus.Collector has no context
	defer cancel()
	n, s := c.node(ctx), sink(metrics)
	s.gauge(buildInfo, 1, n.Version)
	s.gauge(reloaded, boolToFloat(n.Config.Error == ""))
	if !n.Config.Loaded.IsZero() { // a config is in effect
		s.gauge(loaded, float64(n.Config.Loaded.UnixMilli())/1000)
	}
	s.componentHealth(n)
	s.devices(n)
	s.shares(n.Devices)
	s.gauge(unreadable, float64(len(n.Unreadable)))
	for _, g := range n.GPUs {
		s.gauge(gpuHealthy, boolToFloat(g.Fault.None()), g.UUID, string(g.Fault.Code))
		s.gauge(gpuInfo, 1, g.UUID, strconv.Itoa(g.Index), g.Product, g.PCIBusID, n.Driver.Version)
		s.gauge(memoryBytes, float64(g.MemoryBytes), g.UUID)
		s.measurements(g)
	}
	c.xids.keep(n.GPUs)
}

func (s sink) componentHealth(n status.Node) {
	healthy := map[string]bool{
		"driver":  n.Driver.Error == "",
		"spec":    n.Spec.Error == "",
		"runtime": n.Runtime.Error == "",
		"kubelet": len(n.Kubelet.Resources) > 0,
	}
	for _, r := range n.Kubelet.Resources {
		healthy["kubelet"] = healthy["kubelet"] && r.Error == ""
	}
	if d := n.DRA; d != nil {
		healthy["dra"] = !d.Registered.IsZero() && d.Error == ""
		healthy["slices"] = d.Slices.Error == "" && len(d.Slices.Foreign) == 0
	}
	if n.NRI != nil {
		healthy["nri"] = n.NRI.Error == ""
	}
	for component, ok := range healthy {
		s.gauge(components, boolToFloat(ok), component)
	}
}

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (s sink) devices(n status.Node) {
	type kind struct{ resource, health, reason string }
	count, unallocated := map[kind]int{}, map[string]int{}
	total, vacant := map[string]int{}, map[string]int{} // replicas
	type allocation struct {
		resource, device string
		holder           status.Holder
	}
	seen := map[allocation]bool{} // a device has a row of the status for each state of its replicas
	for _, r := range n.Kubelet.Resources {
		count[kind{r.Name, "healthy", ""}], unallocated[r.Name], total[r.Name] = 0, 0, 0 // export 0 if there is none
	}
	for _, d := range n.Devices {
		count[kind{d.Resource, health(d), string(d.Fault.Code)}]++
		if d.Healthy() {
			total[d.Resource] += len(d.IDs())
			vacant[d.Resource] += len(d.IDs()) - d.ReplicasAllocated
		}
		if d.Healthy() && len(d.AllocatedTo) == 0 {
			unallocated[d.Resource]++
		}
		for _, h := range d.AllocatedTo {
			if a := (allocation{d.Resource, d.ID, h}); !seen[a] {
				seen[a] = true
				s.gauge(allocated, 1, d.Resource, d.ID, d.GPU, h.Namespace, h.Pod, h.Container, h.Claim)
			}
		}
	}
	for k, n := range count {
		s.gauge(devices, float64(n), k.resource, k.health, k.reason)
	}
	for resource, n := range unallocated {
		s.gauge(free, float64(n), resource)
	}
	for resource, n := range total {
		s.gauge(replicas, float64(n), resource)
		s.gauge(freeReplicas, float64(vacant[resource]), resource)
	}
}

func health(d status.Device) string {
	switch {
	case d.Healthy():
		return "healthy"
	case d.Fault.None(): // draining or waiting
		return "draining"
	}
	return "unhealthy"
}
