// Package readers parses gpucdi's output with the code of the programs that read it in a cluster: Prometheus, its
// operator, Grafana and Node Feature Discovery. That code runs in the programs of a separate module, foreign, since its
// dependencies conflict with those of Kubernetes.
package readers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

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

// Scrapes are the scrapes of one target.
type Scrapes struct {
	Scrapes []string          // responses, oldest first, 30 s apart
	Target  map[string]string // labels of the target; a metric's own labels take precedence
}

// Sample is an element of an instant vector.
type Sample struct {
	Labels map[string]string
	Value  string
}

// Answer is the result of a query.
type Answer struct {
	Samples []Sample
	Unknown []string // selectors of the query that match no series
	Error   string
}

// Query evaluates queries with Prometheus's engine at the time of the last scrape.
func Query(ctx context.Context, scrapes Scrapes, queries []string) ([]Answer, error) {
	input, err := json.Marshal(struct {
		Scrapes
		Queries []string
	}{scrapes, queries})
	if err != nil {
		return nil, err
	}
	text, err := run(ctx, "promql", input)
	if err != nil {
		return nil, err
	}
	var answers []Answer
	return answers, json.Unmarshal(text, &answers)
}

// Rules validates the content of a file of alerting rules as Prometheus does.
func Rules(ctx context.Context, content string) error {
	_, err := run(ctx, "rules", []byte(content))
	return err
}

// Dashboard decodes a dashboard into Grafana's types. It rejects unknown fields, except within panels.
func Dashboard(ctx context.Context, content string) error {
	_, err := run(ctx, "grafana", []byte(content))
	return err
}

// Operator decodes a PodMonitor or PrometheusRule into the Prometheus operator's types. It rejects unknown fields.
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
	return labels, json.Unmarshal(text, &labels)
}
