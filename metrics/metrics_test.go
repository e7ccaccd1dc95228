package metrics_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/metrics"
	"github.com/gpucdi/gpucdi/status"
)

var xid79 = gpu.Fault{Code: "xid_79", Message: "XID 79: off the bus"}

func value[T any](v T) *T { return &v }

// fullStatus returns a status with all fields that have metrics.
func fullStatus(context.Context) status.Node {
	replicated := status.Device{ID: "GPU-f", Resource: "nvidia.com/gpu.limited", GPU: "GPU-f", MemoryIsolation: "driver", ComputeIsolation: "ceiling", Sharing: &status.Sharing{
		Shares: []status.Share{
			{Namespace: "default", Pods: []string{"replica"}, Amount: status.Amount{Replicas: 1, MemoryBytes: 20 << 30}, MemoryLimited: true, ComputeCeiling: 25, MemoryUsed: new(uint64(1 << 30))},
		}}}
	draining := status.Device{ID: "GPU-f", Resource: "nvidia.com/gpu.old", GPU: "GPU-f", State: status.Draining, Sharing: &status.Sharing{
		Shares: []status.Share{
			{Namespace: "default", Pods: []string{"old"}, Amount: status.Amount{Replicas: 1, MemoryBytes: 40 << 30}, MemoryLimited: true},
		}}}
	shared := status.Device{ID: "GPU-e", Resource: "gpu.nvidia.com", GPU: "GPU-e", MemoryIsolation: "driver", ComputeIsolation: "timeslice", Sharing: &status.Sharing{
		Capacity: status.Amount{Cores: 100, MemoryBytes: 80 << 30}, Free: status.Amount{Cores: 70, MemoryBytes: 60 << 30}, Shares: []status.Share{
			{Namespace: "default", Claim: "quarter", Pods: []string{"pod"}, Containers: []string{"main", "side"}, Amount: status.Amount{Cores: 25, MemoryBytes: 16 << 30}, MemoryLimited: true, ComputeCeiling: 50, MemoryUsed: new(uint64(1 << 30))},
			{Namespace: "default", Claim: "any", Amount: status.Amount{Cores: 5, MemoryBytes: 4 << 30}},
		}}}
	return status.Node{
		Version:    "v1",
		Config:     status.Config{Loaded: time.Unix(1700000000, 0)},
		Driver:     status.Driver{Driver: gpu.Driver{Version: "580.95.05"}},
		Runtime:    status.Runtime{Error: "CDI is off"},
		Kubelet:    status.Kubelet{Resources: []status.Resource{{Name: "nvidia.com/gpu", Registered: time.Now()}}},
		DRA:        &status.DRA{Registered: time.Now(), Slices: status.Slices{Foreign: []string{"x"}}},
		NRI:        &status.NRI{Runtime: "containerd v2.4.2", Connected: time.Now()},
		Unreadable: []gpu.Unreadable{{Index: 5, Fault: gpu.Fault{Code: gpu.FaultUnresponsive}}},
		GPUs: []status.GPU{
			{GPU: gpu.GPU{UUID: "GPU-a", Index: 3, Product: "NVIDIA H100", MemoryBytes: 80 << 30, PCIBusID: "0000:18:00.0",
				MIGDevices: []gpu.MIGDevice{{UUID: "MIG-a", Profile: "1g.10gb", MemoryBytes: 10 << 30}}},
				Telemetry: gpu.Telemetry{
					Utilization: value(0.25), MemoryUsed: value(uint64(5 << 30)), Temperature: value(71.0), Power: value(345.6),
					SMClock: value(1755e6), MemoryClock: value(2619e6), ECCCorrected: value(uint64(7)), ECCUncorrected: value(uint64(1)),
					MemoryUtilization: value(0.5), EncoderUtilization: value(0.125), DecoderUtilization: value(0.0625), FanSpeed: value(1.05),
					MemoryTemperature: value(80.0), PowerLimit: value(700.0), Energy: value(1234.5),
					ClocksEvents: value(gpu.ClocksEvents(0x44)), ClocksEventTimes: map[string]uint64{"sw_power_cap": 2.5e9},
					Activity:       gpu.Activity{SM: value(0.75), Occupancy: value(0.375), Tensor: value(0.0), MemoryBandwidth: value(1.0)},
					RecoveryAction: "reset", RemappedRows: map[string]uint64{"correctable": 2, "uncorrectable": 0},
					RemapPending: value(true), RemapFailed: value(false), RetiredPages: map[string]uint64{"double_bit": 3},
					PCIe:   gpu.Traffic{TransmittedBytes: value(uint64(1e9)), ReceiveRate: value(5e8), Errors: map[string]uint64{"replay": 4}},
					NVLink: gpu.Traffic{ReceivedBytes: value(uint64(2e9)), TransmitRate: value(6e8), Errors: map[string]uint64{"crc_flit": 5}},
					MIG:    map[string]gpu.MIGTelemetry{"MIG-a": {MemoryUsed: value(uint64(1 << 30))}},
				},
				Usage: []status.Usage{
					{Device: "GPU-a", Namespace: "default", Pod: "pod", Container: "main", MemoryUsed: value(uint64(3 << 30)), Utilization: value(0.25)},
					{Device: "MIG-a", Namespace: "default", Pod: "other", Container: "main", MemoryUsed: value(uint64(0))},
				}},
			{GPU: gpu.GPU{UUID: "GPU-b", Fault: xid79}},
		},
		Devices: []status.Device{
			{ID: "GPU-a", Resource: "nvidia.com/gpu", GPU: "GPU-a", ReplicasAllocated: 1, AllocatedTo: []status.Holder{
				{Namespace: "default", Pod: "pod", Container: "main"}, {Namespace: "default", Pod: "other", Container: "main", Claim: "shared"}}},
			// A device has a row for each of its states. A container in several of them is counted once.
			{ID: "GPU-a", Resource: "nvidia.com/gpu", GPU: "GPU-a", State: "draining", AllocatedTo: []status.Holder{
				{Namespace: "default", Pod: "pod", Container: "main"}}},
			{ID: "GPU-b", Resource: "nvidia.com/gpu", GPU: "GPU-b", Fault: xid79},
			{ID: "GPU-d", Resource: "nvidia.com/gpu", GPU: "GPU-d", Replicas: []string{"GPU-d::0", "GPU-d::1", "GPU-d::2"}, ReplicasAllocated: 1},
			{ID: "GPU-c", Resource: "nvidia.com/gpu", GPU: "GPU-c", Fault: xid79},
			shared, shared, replicated, draining,
		},
	}
}

// allMetrics returns Metrics with at least one series of each metric.
func allMetrics() *metrics.Metrics {
	m := metrics.New(fullStatus, []int{48, 79})
	m.Called("nvidia.com/gpu", "Allocate", "OK", 20*time.Microsecond)
	m.Registered("nvidia.com/gpu")
	m.XID("GPU-b", 79, 1)
	m.Reconciled(nil, nil)
	m.Reconciled(errors.New("unloaded"), errors.New("full"))
	m.SpecWritten()
	m.EnableDRA(func() uint64 { return 3 }, []string{"held", "fault"})
	m.Waited()
	m.Prepared(300*time.Microsecond, "")
	m.Prepared(20*time.Second, "held")
	m.Unprepared(time.Millisecond, "")
	return m
}

func scrape(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	response := httptest.NewRecorder()
	m.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if response.Code != 200 {
		t.Fatalf("%d %s", response.Code, response.Body)
	}
	return response.Body.String()
}

func TestMetrics(t *testing.T) {
	got := scrape(t, allMetrics())
	for _, want := range []string{
		`gpucdi_build_info{version="v1"} 1`,
		`gpucdi_config_last_reload_successful 1`,
		`gpucdi_config_last_reload_success_timestamp_seconds 1.7e+09`,
		`gpucdi_devices{health="healthy",reason="",resource="nvidia.com/gpu"} 2`,
		`gpucdi_devices{health="draining",reason="",resource="nvidia.com/gpu"} 1`,
		`gpucdi_devices_free{resource="nvidia.com/gpu"} 1`,
		`gpucdi_replicas{resource="nvidia.com/gpu"} 4`,
		`gpucdi_replicas_free{resource="nvidia.com/gpu"} 2`,
		`gpucdi_devices{health="unhealthy",reason="xid_79",resource="nvidia.com/gpu"} 2`,
		`gpucdi_device_allocated{claim="",container="main",device="GPU-a",gpu="GPU-a",namespace="default",pod="pod",resource="nvidia.com/gpu"} 1`,
		`gpucdi_device_allocated{claim="shared",container="main",device="GPU-a",gpu="GPU-a",namespace="default",pod="other",resource="nvidia.com/gpu"} 1`,
		`gpucdi_component_healthy{component="runtime"} 0`,
		`gpucdi_component_healthy{component="kubelet"} 1`,
		`gpucdi_component_healthy{component="dra"} 1`,
		`gpucdi_component_healthy{component="slices"} 0`,
		`gpucdi_component_healthy{component="nri"} 1`,
		`gpucdi_unreadable_devices 1`,
		`gpucdi_gpu_info{driver="580.95.05",gpu="GPU-a",index="3",pci_bus_id="0000:18:00.0",product="NVIDIA H100"} 1`,
		`gpucdi_gpu_utilization_ratio{gpu="GPU-a"} 0.25`,
		`gpucdi_gpu_memory_bytes{gpu="GPU-a"} 8.589934592e+10`,
		`gpucdi_gpu_memory_used_bytes{gpu="GPU-a"} 5.36870912e+09`,
		`gpucdi_gpu_temperature_celsius{gpu="GPU-a"} 71`,
		`gpucdi_gpu_power_watts{gpu="GPU-a"} 345.6`,
		`gpucdi_gpu_clock_hertz{clock="sm",gpu="GPU-a"} 1.755e+09`,
		`gpucdi_gpu_ecc_errors_total{gpu="GPU-a",kind="corrected"} 7`,
		`gpucdi_gpu_ecc_errors_total{gpu="GPU-a",kind="uncorrected"} 1`,
		`gpucdi_gpu_memory_utilization_ratio{gpu="GPU-a"} 0.5`,
		`gpucdi_gpu_encoder_utilization_ratio{gpu="GPU-a"} 0.125`,
		`gpucdi_gpu_decoder_utilization_ratio{gpu="GPU-a"} 0.0625`,
		`gpucdi_gpu_fan_speed_ratio{gpu="GPU-a"} 1.05`,
		`gpucdi_gpu_memory_temperature_celsius{gpu="GPU-a"} 80`,
		`gpucdi_gpu_power_limit_watts{gpu="GPU-a"} 700`,
		`gpucdi_gpu_energy_joules_total{gpu="GPU-a"} 1234.5`,
		`gpucdi_gpu_clocks_event{gpu="GPU-a",reason="sw_power_cap"} 1`,
		`gpucdi_gpu_clocks_event{gpu="GPU-a",reason="hw_thermal"} 1`,
		`gpucdi_gpu_clocks_event{gpu="GPU-a",reason="idle"} 0`,
		`gpucdi_gpu_clocks_event_seconds_total{gpu="GPU-a",reason="sw_power_cap"} 2.5`,
		`gpucdi_gpu_sm_active_ratio{gpu="GPU-a"} 0.75`,
		`gpucdi_gpu_sm_occupancy_ratio{gpu="GPU-a"} 0.375`,
		`gpucdi_gpu_tensor_active_ratio{gpu="GPU-a"} 0`,
		`gpucdi_gpu_memory_bandwidth_utilization_ratio{gpu="GPU-a"} 1`,
		`gpucdi_gpu_recovery_action{action="reset",gpu="GPU-a"} 1`,
		`gpucdi_gpu_remapped_rows_total{cause="correctable",gpu="GPU-a"} 2`,
		`gpucdi_gpu_remapped_rows_total{cause="uncorrectable",gpu="GPU-a"} 0`,
		`gpucdi_gpu_row_remap_pending{gpu="GPU-a"} 1`,
		`gpucdi_gpu_row_remap_failed{gpu="GPU-a"} 0`,
		`gpucdi_gpu_retired_pages_total{cause="double_bit",gpu="GPU-a"} 3`,
		`gpucdi_gpu_pcie_bytes_total{direction="transmitted",gpu="GPU-a"} 1e+09`,
		`gpucdi_gpu_pcie_bytes_per_second{direction="received",gpu="GPU-a"} 5e+08`,
		`gpucdi_gpu_pcie_errors_total{gpu="GPU-a",kind="replay"} 4`,
		`gpucdi_gpu_nvlink_bytes_total{direction="received",gpu="GPU-a"} 2e+09`,
		`gpucdi_gpu_nvlink_bytes_per_second{direction="transmitted",gpu="GPU-a"} 6e+08`,
		`gpucdi_gpu_nvlink_errors_total{gpu="GPU-a",kind="crc_flit"} 5`,
		`gpucdi_mig_device_info{device="MIG-a",gpu="GPU-a",profile="1g.10gb"} 1`,
		`gpucdi_mig_device_memory_bytes{device="MIG-a",gpu="GPU-a"} 1.073741824e+10`,
		`gpucdi_mig_device_memory_used_bytes{device="MIG-a",gpu="GPU-a"} 1.073741824e+09`,
		`gpucdi_container_gpu_memory_used_bytes{container="main",device="GPU-a",gpu="GPU-a",namespace="default",pod="pod"} 3.221225472e+09`,
		`gpucdi_container_gpu_memory_used_bytes{container="main",device="MIG-a",gpu="GPU-a",namespace="default",pod="other"} 0`,
		`gpucdi_container_gpu_utilization_ratio{container="main",device="GPU-a",gpu="GPU-a",namespace="default",pod="pod"} 0.25`,
		`gpucdi_kubelet_call_duration_seconds_bucket{code="OK",method="Allocate",resource="nvidia.com/gpu",le="1e-05"} 0`,
		`gpucdi_kubelet_call_duration_seconds_bucket{code="OK",method="Allocate",resource="nvidia.com/gpu",le="4e-05"} 1`,
		`gpucdi_registrations_total{resource="nvidia.com/gpu"} 1`,
		`gpucdi_gpu_healthy{code="",gpu="GPU-a"} 1`,
		`gpucdi_gpu_healthy{code="xid_79",gpu="GPU-b"} 0`,
		`gpucdi_xids_total{gpu="GPU-a",xid="79"} 0`,
		`gpucdi_xids_total{gpu="GPU-b",xid="48"} 0`,
		`gpucdi_xids_total{gpu="GPU-b",xid="79"} 1`,
		`gpucdi_xids_total{gpu="GPU-b",xid="other"} 0`,
		`gpucdi_reconciles_total 2`,
		`gpucdi_reconcile_errors_total{stage="driver"} 1`,
		`gpucdi_reconcile_errors_total{stage="spec"} 1`,
		`gpucdi_spec_writes_total 1`,
		`gpucdi_dra_prepare_duration_seconds_bucket{le="0.00025"} 0`,
		`gpucdi_dra_prepare_duration_seconds_bucket{le="0.001"} 1`,
		`gpucdi_device_isolation_info{compute="timeslice",device="GPU-e",gpu="GPU-e",memory="driver"} 1`,
		`gpucdi_shared_cores_free{device="GPU-e",gpu="GPU-e"} 70`,
		`gpucdi_shared_memory_free_bytes{device="GPU-e",gpu="GPU-e"} 6.442450944e+10`,
		`gpucdi_share_cores{claim="quarter",container="main,side",device="GPU-e",gpu="GPU-e",namespace="default",pod="pod"} 25`,
		`gpucdi_share_memory_limit_bytes{claim="",container="",device="GPU-f",gpu="GPU-f",namespace="default",pod="old"} 4.294967296e+10`,
		`gpucdi_share_cores_limit{claim="",container="",device="GPU-f",gpu="GPU-f",namespace="default",pod="replica"} 25`,
		`gpucdi_share_memory_bytes{claim="",container="",device="GPU-f",gpu="GPU-f",namespace="default",pod="replica"} 2.147483648e+10`,
		`gpucdi_share_memory_limit_bytes{claim="",container="",device="GPU-f",gpu="GPU-f",namespace="default",pod="replica"} 2.147483648e+10`,
		`gpucdi_share_memory_used_bytes{claim="",container="",device="GPU-f",gpu="GPU-f",namespace="default",pod="replica"} 1.073741824e+09`,
		`gpucdi_share_cores_limit{claim="quarter",container="main,side",device="GPU-e",gpu="GPU-e",namespace="default",pod="pod"} 50`,
		`gpucdi_share_memory_bytes{claim="any",container="",device="GPU-e",gpu="GPU-e",namespace="default",pod=""} 4.294967296e+09`,
		`gpucdi_share_memory_limit_bytes{claim="quarter",container="main,side",device="GPU-e",gpu="GPU-e",namespace="default",pod="pod"} 1.7179869184e+10`,
		`gpucdi_share_memory_used_bytes{claim="quarter",container="main,side",device="GPU-e",gpu="GPU-e",namespace="default",pod="pod"} 1.073741824e+09`,
		`gpucdi_dra_prepare_duration_seconds_count 2`,
		`gpucdi_dra_unprepare_duration_seconds_count 1`,
		`gpucdi_dra_refusals_total{reason="held"} 1`,
		`gpucdi_dra_refusals_total{reason="fault"} 0`,
		`gpucdi_dra_slice_writes_total 3`,
		`gpucdi_dra_waits_total 1`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, got)
		}
	}
	if healthy := strings.Count(got, "\ngpucdi_gpu_healthy{"); healthy != 2 {
		t.Errorf("got %d series of gpucdi_gpu_healthy for 2 GPUs", healthy)
	}
	if strings.Contains(got, `gpucdi_gpu_power_watts{gpu="GPU-b"}`) {
		t.Error("got a power metric of a GPU that does not report its power")
	}
}

func TestMetricsOfEmptyNode(t *testing.T) {
	got := scrape(t, metrics.New(func(context.Context) status.Node {
		return status.Node{Kubelet: status.Kubelet{Resources: []status.Resource{{Name: "nvidia.com/gpu", Error: "waiting"}}},
			DRA: &status.DRA{Error: "not attempted yet"}, NRI: &status.NRI{Error: "not connected yet"}}
	}, nil))
	for _, want := range []string{
		`gpucdi_devices{health="healthy",reason="",resource="nvidia.com/gpu"} 0`,
		`gpucdi_component_healthy{component="kubelet"} 0`,
		`gpucdi_component_healthy{component="dra"} 0`,
		`gpucdi_component_healthy{component="slices"} 1`,
		`gpucdi_component_healthy{component="nri"} 0`,
		`gpucdi_unreadable_devices 0`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, got)
		}
	}
}

// Unknown codes and GPUs that are gone must not add series.
func TestXIDCardinalityIsBounded(t *testing.T) {
	m := metrics.New(fullStatus, []int{48, 79})
	for code := range 10_000 {
		m.XID("GPU-b", code, 1)
		m.XID(fmt.Sprint("GPU-gone-", code), code, 1)
	}
	got := scrape(t, m)
	if series := strings.Count(got, "\ngpucdi_xids_total{"); series != 2*3 {
		t.Errorf("got %d series for 2 GPUs, want %d", series, 2*3)
	}
	for _, want := range []string{`gpucdi_xids_total{gpu="GPU-b",xid="79"} 1`, `gpucdi_xids_total{gpu="GPU-b",xid="other"} 9998`} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, got)
		}
	}
}

// Invalid data of one GPU must not affect the metrics of the others.
func TestMetricsOfHostileDriver(t *testing.T) {
	const hostile = "\xff\n\"} 1\ngpucdi_forged 1\n\x1b"
	got := scrape(t, metrics.New(func(ctx context.Context) status.Node {
		n := fullStatus(ctx)
		n.Driver.Version = hostile
		twice := n.GPUs[0]
		n.GPUs = append(n.GPUs, twice, status.GPU{GPU: gpu.GPU{UUID: hostile, Product: hostile, PCIBusID: hostile, Fault: gpu.Fault{Code: hostile}}})
		n.Devices = append(n.Devices, n.Devices[0], status.Device{ID: hostile, Resource: hostile, GPU: hostile, Fault: gpu.Fault{Code: hostile}})
		return n
	}, []int{79}))
	if !strings.Contains(got, `gpucdi_gpu_healthy{code="xid_79",gpu="GPU-b"} 0`+"\n") {
		t.Errorf("the valid GPUs are missing in\n%s", got)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(got))
	if err != nil || families["gpucdi_forged"] != nil {
		t.Errorf("%v:\n%s", err, got)
	}
}

func TestMetricsPassPromlint(t *testing.T) {
	problems, err := promlint.New(strings.NewReader(scrape(t, allMetrics()))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestDocumentedMetrics(t *testing.T) {
	var rows []string
	for name, family := range families(t) {
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, strings.ToLower(family.GetType().String()), labels(family), family.GetHelp()))
	}
	slices.Sort(rows)
	want := "|---|---|---|---|\n" + strings.Join(rows, "") + "\n"
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), want) {
		t.Errorf("docs/metrics.md does not have exactly these rows:\n%s", want)
	}
}

// The metrics in the migration guides exist. A name that ends with * is the prefix of several.
func TestMetricsOfMigrationGuides(t *testing.T) {
	known := slices.Collect(maps.Keys(families(t)))
	metric := regexp.MustCompile(`\bgpucdi_\w+\*?`)
	for _, guide := range []string{"moving-hami.md", "moving-gpu-manager.md"} {
		text, err := os.ReadFile("../docs/" + guide)
		if err != nil {
			t.Fatal(err)
		}
		names := metric.FindAllString(string(text), -1)
		if len(names) == 0 {
			t.Errorf("docs/%s names no metrics", guide)
		}
		for _, name := range names {
			prefix, several := strings.CutSuffix(name, "*")
			matches := func(known string) bool { return known == name || several && strings.HasPrefix(known, prefix) }
			if !slices.ContainsFunc(known, matches) {
				t.Errorf("docs/%s names the metric %s, which does not exist", guide, name)
			}
		}
	}
}

// panel is a panel of the dashboard. A row contains its panels while it is collapsed.
type panel struct {
	Title   string
	Targets []struct{ Expr string }
	Panels  []panel
}

// Each metric is in a query of the dashboard, and the queries have no other metrics.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../deploy/gpucdi/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard panel
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	missing := families(t)
	series := map[string]string{} // family names by series name
	for name, family := range missing {
		series[name] = name
		if family.GetType() == dto.MetricType_HISTOGRAM {
			delete(series, name)
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				series[name+suffix] = name
			}
		}
	}
	metric := regexp.MustCompile(`\bgpucdi_\w+`)
	for panels := dashboard.Panels; len(panels) > 0; panels = panels[1:] {
		panels = append(panels, panels[0].Panels...)
		for _, target := range panels[0].Targets {
			for _, name := range metric.FindAllString(target.Expr, -1) {
				if series[name] == "" {
					t.Errorf("panel %s has the unknown metric %s", panels[0].Title, name)
				}
				delete(missing, series[name])
			}
		}
	}
	for name := range missing {
		t.Errorf("no panel of the dashboard has %s", name)
	}
}

// families returns all metrics by name.
func families(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(scrape(t, allMetrics())))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// labels returns the label names of a family.
func labels(family *dto.MetricFamily) string {
	var names []string
	for _, pair := range family.GetMetric()[0].GetLabel() {
		names = append(names, "`"+pair.GetName()+"`")
	}
	return strings.Join(names, ", ")
}
