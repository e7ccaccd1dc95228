// Package readers asks the programs of others that read what gpucdi writes for a
// cluster: Prometheus, its operator, Grafana and Node Feature Discovery. Their
// code is built into programs of a module of its own, foreign: each would bring
// this module other versions than Kubernetes'.
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

// ask runs one of the programs and returns what it answers.
func ask(ctx context.Context, name string, question []byte, flags ...string) ([]byte, error) {
	module, err := tools.ModuleDir(ctx)
	if err != nil {
		return nil, err
	}
	args := append([]string{"run", "-C", filepath.Join(module, "readers/foreign")}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+name)...)
	cmd.Stdin = bytes.NewReader(question)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	answer, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", name, err, complaints.String())
	}
	return answer, nil
}

// Scrapes is what Prometheus knows of a target.
type Scrapes struct {
	Scrapes []string          // what it answered, the latest last; 30 s lie between two
	Target  map[string]string // its labels, which a metric's own win over
}

// Sample is one of those that a query results in.
type Sample struct {
	Labels map[string]string
	Value  string
}

// Answer is what a query results in.
type Answer struct {
	Samples []Sample
	Unknown []string // selectors of the query that no metric fits
	Error   string
}

// Query evaluates queries with Prometheus's engine at the time of the last scrape.
func Query(ctx context.Context, known Scrapes, queries []string) ([]Answer, error) {
	question, err := json.Marshal(struct {
		Scrapes
		Queries []string
	}{known, queries})
	if err != nil {
		return nil, err
	}
	text, err := ask(ctx, "promql", question)
	if err != nil {
		return nil, err
	}
	var answers []Answer
	return answers, json.Unmarshal(text, &answers)
}

// Rules has Prometheus read a file of alerts.
func Rules(ctx context.Context, file string) error {
	_, err := ask(ctx, "rules", []byte(file))
	return err
}

// Dashboard has Grafana's own types read a dashboard, strictly as far as panels.
func Dashboard(ctx context.Context, file string) error {
	_, err := ask(ctx, "grafana", []byte(file))
	return err
}

// Operator has the Prometheus operator's own types read an object, strictly.
func Operator(ctx context.Context, object string) error {
	_, err := ask(ctx, "operator", []byte(object))
	return err
}

// Features returns the labels that Node Feature Discovery finds in a directory
// with feature files.
func Features(ctx context.Context, dir string) (map[string]string, error) {
	const place = "sigs.k8s.io/node-feature-discovery/source/local.featureFilesDir"
	text, err := ask(ctx, "nfd", nil, "-ldflags", "-X "+place+"="+dir)
	if err != nil {
		return nil, err
	}
	var labels map[string]string
	return labels, json.Unmarshal(text, &labels)
}
