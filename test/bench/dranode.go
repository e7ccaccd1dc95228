package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	nodebox "github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

const (
	// deviceClass is the class of GPUs, and the name of the DRA driver.
	deviceClass = "gpu.nvidia.com"
	// accountDir contains the credentials of the agent's service account. The agent reads them below /var/run, an absolute
	// link to /run. Through Box.Path, that link would lead to /run of this machine.
	accountDir = "/run/secrets/kubernetes.io/serviceaccount"
)

// withDRA is gpucdi with all GPUs in ResourceSlices.
func withDRA() stack {
	return stack{name: "dra", agent: true, claims: true, command: agentInCluster("--config", configDir+"/dra.yaml", "--dra-driver-name", deviceClass)}
}

// withParts is gpucdi with all GPUs in ResourceSlices, as devices of which claims can request a part.
func withParts() stack {
	return stack{name: "part", agent: true, claims: true, request: object{"capacity": object{"requests": object{"cores": "25", "memory": "20Gi"}}},
		command: agentInCluster("--config", configDir+"/parts.yaml", "--dra-driver-name", deviceClass)}
}

// withoutDRA is gpucdi with its device plugin only.
func withoutDRA() stack {
	return stack{name: "device-plugin", agent: true, devices: gpuCount, command: agentInCluster()}
}

// agentInCluster returns the command of an agent with access to the API server.
func agentInCluster(args ...string) []string {
	return inCluster(append([]string{"serve", "--node-name", nodebox.Name}, args...)...)
}

// inCluster returns a command of gpucdi with access to the API server.
func inCluster(args ...string) []string {
	return append([]string{"env", "GOMAXPROCS=1", "KUBERNETES_SERVICE_HOST=" + nodebox.ServiceIP, "KUBERNETES_SERVICE_PORT=443", gpucdiDir + "/gpucdi"}, args...)
}

// draNode is a node on which the agent has access to the API server.
type draNode struct {
	*podNode
	agent  endpoint // the agent's metrics and health
	server endpoint // the API server, over a kept-alive connection with the agent's credentials
	slices *sliceWatch
}

func (b *bench) startDRANode(ctx context.Context) (*draNode, error) {
	p, err := b.startPodNode(ctx)
	if err != nil {
		return nil, err
	}
	n := &draNode{podNode: p}
	if err = n.authorize(ctx); err == nil {
		n.slices, err = watchSlices(ctx, &n.server)
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return n, nil
}

// authorize creates the DeviceClasses and the service account of the chart, and gives the agent the credentials of the
// service account.
func (n *draNode) authorize(ctx context.Context) error {
	if err := n.applyChart(ctx, "dra.enabled=true", "rbac", "dra"); err != nil {
		return err
	}
	token, err := n.Kubectl(ctx, "create", "token", "gpucdi", "--bound-object-kind", "Node", "--bound-object-name", nodebox.Name)
	if err != nil {
		return err
	}
	ca, err := n.Kubectl(ctx, "get", "configmap", "kube-root-ca.crt", "-o", `jsonpath={.data.ca\.crt}`)
	if err != nil {
		return err
	}
	dir := n.Box.Path(accountDir)
	err = errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "token"), token, 0o600),
		os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o600))
	if err != nil {
		return fmt.Errorf("writing the credentials of the agent: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return errors.New("reading the cluster CA: no certificate")
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: n.Box.Dial, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	n.agent = endpoint{client: client, url: "http://127.0.0.1:9435"}
	n.server = endpoint{client: client, url: "https://" + nodebox.ServiceIP, token: strings.TrimSpace(string(token))}
	return nil
}

// applyChart applies templates of the chart with values.
func (n *draNode) applyChart(ctx context.Context, values string, templates ...string) error {
	helm, err := tools.Build(ctx, tools.Helm)
	if err != nil {
		return err
	}
	module, err := tools.ModuleDir(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(helm, "helm"), "template", "gpucdi", filepath.Join(filepath.Dir(module), "deploy/gpucdi"),
		"--kube-version", "1.36.0", "--set", values)
	for _, name := range templates {
		cmd.Args = append(cmd.Args, "--show-only", "templates/"+name+".yaml")
	}
	manifest, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("rendering the chart: %w", err)
	}
	return n.Apply(ctx, manifest)
}

// startPublishing starts a DRA driver, and returns the time until its ResourceSlices have all GPUs.
func (n *draNode) startPublishing(ctx context.Context, s stack) (*running, time.Duration, error) {
	timed := s
	timed.command = append([]string{"bash", "-c", `echo "$EPOCHREALTIME" && exec "$@"`, "bash"}, s.command...)
	r, err := n.run(ctx, timed)
	if err != nil {
		return nil, 0, err
	}
	err = n.slices.await(ctx, gpuCount)
	published := time.Now()
	var begin time.Time
	if err == nil {
		begin, err = n.begin(s)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("%w\n%s", err, n.diagnostics(ctx, s)), n.stop(ctx, r))
	}
	return r, published.Sub(begin), nil
}

// begin returns the time in the first line of a stack's log. It is printed in the box, since entering the box also takes
// time.
func (n *draNode) begin(s stack) (time.Time, error) {
	log, err := os.ReadFile(n.log(s))
	if err != nil {
		return time.Time{}, err
	}
	line, _, _ := strings.Cut(string(log), "\n")
	seconds, err := strconv.ParseFloat(line, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("parsing the start of %s: %w", s.name, err)
	}
	return time.UnixMicro(int64(seconds * 1e6)), nil
}

// serve starts the driver of a stack, and waits until its GPUs are advertised. An agent is then registered; NVIDIA's driver
// does not report that to others, and is by the time that its first pod is prepared.
func (n *draNode) serve(ctx context.Context, s stack) (*running, error) {
	r, err := n.podNode.serve(ctx, s)
	if err != nil || !s.claims {
		return r, err
	}
	if err = n.slices.await(ctx, gpuCount); err == nil && s.agent {
		err = poll(ctx, "the registration of the DRA driver", time.Minute, func() (bool, error) {
			_, err := n.agent.do(ctx, http.MethodGet, "/readyz", nil)
			return err == nil, nil
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, n.diagnostics(ctx, s)), n.stop(ctx, r))
	}
	return r, nil
}

// leftovers are the files that an agent or NVIDIA's driver leaves: their state, their CDI specs, and the socket of the
// device plugin. If the next agent found some of them, it would wait until the kubelet's records prove that no pod holds a
// GPU.
var leftovers = []string{"/run/gpucdi", "/run/cdi/*", "/var/lib/kubelet/device-plugins/gpucdi*", "/var/lib/kubelet/plugins/" + deviceClass}

// stop stops the agent, and removes its slices and files.
func (n *draNode) stop(ctx context.Context, r *running) error {
	err := errors.Join(r.stop(ctx), n.deleteSlices(ctx))
	for _, pattern := range leftovers {
		paths, _ := filepath.Glob(n.Box.Path(pattern)) // fails only for an invalid pattern
		for _, path := range paths {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return err
}
