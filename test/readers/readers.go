// Package readers parses gpucdi's output with the code of the programs that read it in a cluster: Prometheus, its
// operator, Grafana and Node Feature Discovery. That code runs in the programs of a separate module, foreign, since its
// dependencies conflict with the dependencies of Kubernetes.
package readers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/test/node/tools"
)

// run runs a program of foreign and returns its standard output.
func run(ctx context.Context, name string, stdin []byte, flags ...string) ([]byte, error) {
	module, err := tools.ModuleDir(ctx)
	if err != nil {
		return nil, err
	}
	args := append([]string{"run", "-C", filepath.Join(module, "readers/foreign")}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+name)...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", name, err, stderr.String())
	}
	return stdout, nil
}

// Scenario is the input of a Prometheus server: the scrapes of one target, alerting rules, and queries.
type Scenario struct {
	Phases  []Phase           // in order
	Target  map[string]string // labels of the target; a metric's own labels take precedence
	Rules   string            // content of a file of alerting rules, which may be empty
	Queries []string          // to evaluate at the end
}

// Phase is a period in which the target does not change. The target is scraped every 30 s, and at least once.
type Phase struct {
	Scrape   string // response of the target; if empty, the scrapes fail
	Duration time.Duration
}

// Result is the result of a scenario.
type Result struct {
	Alerts  [][]Alert // that fire at the end of each phase
	Answers []Answer  // to the queries
}

// Alert is a firing alert.
type Alert struct {
	Name                string
	Labels, Annotations map[string]string
}

// Answer is the result of a query.
type Answer struct {
	Samples []Sample
	Unknown []string // selectors of the query that match no series
	Error   string
}

// Sample is an element of an instant vector.
type Sample struct {
	Labels map[string]string
	Value  string
}

// Prometheus runs a scenario with Prometheus's code, without waiting. Invalid rules or scrapes are an error. The error
// of an invalid query is in its Answer.
func Prometheus(ctx context.Context, s Scenario) (Result, error) {
	input, err := json.Marshal(s)
	if err != nil {
		return Result{}, err
	}
	text, err := run(ctx, "prometheus", input)
	if err != nil {
		return Result{}, err
	}
	var r Result
	err = json.Unmarshal(text, &r)
	return r, err
}

// Dashboard decodes a dashboard into Grafana's types. It rejects unknown fields, except within panels.
func Dashboard(ctx context.Context, content string) error {
	_, err := run(ctx, "grafana", []byte(content))
	return err
}

// Operator decodes a PodMonitor, ServiceMonitor or PrometheusRule into the Prometheus operator's types. It rejects
// unknown fields.
func Operator(ctx context.Context, object string) error {
	_, err := run(ctx, "operator", []byte(object))
	return err
}

// Features returns the labels that Node Feature Discovery reads from a directory of feature files.
func Features(ctx context.Context, dir string) (map[string]string, error) {
	const variable = "sigs.k8s.io/node-feature-discovery/source/local.featureFilesDir"
	text, err := run(ctx, "nfd", nil, "-ldflags", "-X "+variable+"="+dir)
	if err != nil {
		return nil, err
	}
	var labels map[string]string
	err = json.Unmarshal(text, &labels)
	return labels, err
}
