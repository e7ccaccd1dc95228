package metrics

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/status"
)

// statusWithin bounds the request for the status.
const statusWithin = 5 * time.Second

// knowledge collects the metrics of a node's status. Which GPUs it has bounds what is counted of them.
type knowledge struct {
	node func(context.Context) status.Node
	xids *xids
}

var (
	buildInfo = describe("gpucdi_build_info", "The version of the agent; always 1.", "version")
	reloaded  = describe("gpucdi_config_last_reload_successful", "1 while the config's file is what holds; 0 when it was refused.")
	loaded    = describe("gpucdi_config_last_reload_success_timestamp_seconds", "When the config was last taken up.")
	links     = describe("gpucdi_link_healthy", "1 while a link of the chain from the driver to the kubelet holds: driver, spec, runtime, kubelet.", "link")
	devices   = describe("gpucdi_devices", "GPUs and MIG devices by health, however many share them: healthy, unhealthy with the code of the fault as the reason, or draining, which is unavailable because of a planned change.", "resource", "health", "reason")
	free      = describe("gpucdi_devices_free", "Healthy GPUs and MIG devices that no container holds.", "resource")
	allocated = describe("gpucdi_device_allocated", "1 for each GPU or MIG device that a container holds, by the kubelet's word.",
		"resource", "device", "gpu", "namespace", "pod", "container")

	gpuHealthy = describe("gpucdi_gpu_healthy", "1 while a GPU and its MIG devices are healthy, else 0 with the code of the fault, as in docs/health.md.", "gpu", "code")

	gpuInfo     = describe("gpucdi_gpu_info", "What a GPU is; always 1.", "gpu", "index", "product", "pci_bus_id", "driver")
	memoryBytes = describe("gpucdi_gpu_memory_bytes", "Memory of a GPU.", "gpu")
	memoryUsed  = describe("gpucdi_gpu_memory_used_bytes", "Memory of a GPU that is in use.", "gpu")
	utilization = describe("gpucdi_gpu_utilization_ratio", "Part of the time, 0 to 1, in which a GPU computed.", "gpu")
	temperature = describe("gpucdi_gpu_temperature_celsius", "Temperature of a GPU.", "gpu")
	power       = describe("gpucdi_gpu_power_watts", "Power that a GPU draws.", "gpu")
	clocks      = describe("gpucdi_gpu_clock_hertz", "Clock of a GPU: sm or memory.", "gpu", "clock")
	eccErrors   = describe("gpucdi_gpu_ecc_errors_total", "Memory errors of a GPU since its last reset: corrected or uncorrected.", "gpu", "kind")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (k knowledge) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{buildInfo, reloaded, loaded, links, devices, free, allocated,
		gpuHealthy, gpuInfo, memoryBytes, memoryUsed, utilization, temperature, power, clocks, eccErrors} {
		descs <- d
	}
}

// sink takes the metrics of one scrape.
type sink chan<- prometheus.Metric

// metric yields a value. Labels come from hardware too: what is no UTF-8 in them is
// dropped, since Prometheus refuses it.
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
func (k knowledge) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statusWithin) //nolint:forbidigo // the interface hands none on
	defer cancel()
	n, s := k.node(ctx), sink(metrics)
	s.gauge(buildInfo, 1, n.Version)
	s.gauge(reloaded, truth(n.Config.Trouble == ""))
	if !n.Config.Loaded.IsZero() { // a config is in effect
		s.gauge(loaded, float64(n.Config.Loaded.UnixMilli())/1000)
	}
	s.chain(n)
	s.devices(n)
	for _, g := range n.GPUs {
		s.gauge(gpuHealthy, truth(g.Fault.None()), g.UUID, string(g.Fault.Code))
		s.gauge(gpuInfo, 1, g.UUID, strconv.Itoa(g.Index), g.Product, g.PCIBusID, n.Driver.Version)
		s.gauge(memoryBytes, float64(g.MemoryBytes), g.UUID)
		s.telemetry(g.UUID, g.Telemetry)
	}
	k.xids.keep(n.GPUs)
}

func (s sink) chain(n status.Node) {
	healthy := map[string]bool{
		"driver":  n.Driver.Trouble == "",
		"spec":    n.Spec.Trouble == "",
		"runtime": n.Runtime.Trouble == "",
		"kubelet": len(n.Kubelet.Resources) > 0,
	}
	for _, r := range n.Kubelet.Resources {
		healthy["kubelet"] = healthy["kubelet"] && r.Trouble == ""
	}
	for link, holds := range healthy {
		s.gauge(links, truth(holds), link)
	}
}

func truth(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

func (s sink) devices(n status.Node) {
	type kind struct{ resource, health, reason string }
	count, unheld := map[kind]int{}, map[string]int{}
	type share struct {
		resource, device string
		holder           status.Holder
	}
	told := map[share]bool{} // of a device's replicas, some may be listed apart
	for _, r := range n.Kubelet.Resources {
		count[kind{r.Name, "healthy", ""}], unheld[r.Name] = 0, 0 // to be seen when there is none
	}
	for _, d := range n.Devices {
		count[kind{d.Resource, health(d), string(d.Fault.Code)}]++
		if d.Healthy() && len(d.HeldBy) == 0 {
			unheld[d.Resource]++
		}
		for _, h := range d.HeldBy {
			if one := (share{d.Resource, d.ID, h}); !told[one] {
				told[one] = true
				s.gauge(allocated, 1, d.Resource, d.ID, d.GPU, h.Namespace, h.Pod, h.Container)
			}
		}
	}
	for k, n := range count {
		s.gauge(devices, float64(n), k.resource, k.health, k.reason)
	}
	for resource, n := range unheld {
		s.gauge(free, float64(n), resource)
	}
}

func health(d status.Device) string {
	switch {
	case d.Healthy():
		return "healthy"
	case d.Fault.None():
		return "draining"
	}
	return "unhealthy"
}

func (s sink) telemetry(uuid string, t gpu.Telemetry) {
	for _, m := range []struct {
		desc   *prometheus.Desc
		value  *float64
		labels []string
	}{
		{utilization, t.Utilization, nil},
		{temperature, t.Temperature, nil},
		{power, t.Power, nil},
		{clocks, t.SMClock, []string{"sm"}},
		{clocks, t.MemoryClock, []string{"memory"}},
	} {
		if m.value != nil {
			s.gauge(m.desc, *m.value, append([]string{uuid}, m.labels...)...)
		}
	}
	if t.MemoryUsed != nil {
		s.gauge(memoryUsed, float64(*t.MemoryUsed), uuid)
	}
	for kind, count := range map[string]*uint64{"corrected": t.ECCCorrected, "uncorrected": t.ECCUncorrected} {
		if count != nil {
			s.metric(eccErrors, prometheus.CounterValue, float64(*count), uuid, kind)
		}
	}
}
