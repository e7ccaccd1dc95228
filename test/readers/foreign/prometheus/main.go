// Command prometheus stores scrapes of one target, and evaluates alerting rules and queries on them, with Prometheus's
// packages and without waiting. "promtool test rules" evaluates rules with the same packages, but it cannot parse a
// scrape, and it depends on the client libraries of all service discoveries.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/teststorage"
)

// interval is the time between two scrapes. The rules are evaluated after each scrape.
const interval = 30 * time.Second

// input is read from standard input as JSON. readers.Scenario documents its fields.
type input struct {
	Phases  []phase
	Target  map[string]string
	Rules   string
	Queries []string
}

type phase struct {
	Scrape   string
	Duration time.Duration
}

// output is written to standard output as JSON.
type output struct {
	Alerts  [][]alert
	Answers []answer
}

func main() {
	if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, stdin io.Reader, stdout io.Writer) (err error) {
	var in input
	if err := json.NewDecoder(stdin).Decode(&in); err != nil {
		return fmt.Errorf("decoding the input: %w", err)
	}
	series, err := teststorage.NewWithError()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, series.Close()) }()
	parse := parser.NewParser(parser.Options{})
	engine := promql.NewEngine(promql.EngineOpts{
		Logger: promslog.NewNopLogger(), MaxSamples: 1e7, Timeout: time.Minute, Parser: parse,
	})
	groups, err := load(ctx, in.Rules, engine, series, parse)
	if err != nil {
		return err
	}

	target := target{series: series, labels: in.Target}
	out := output{Alerts: make([][]alert, len(in.Phases)), Answers: make([]answer, len(in.Queries))}
	at := time.Unix(0, 0)
	for i, p := range in.Phases {
		for end := at.Add(max(p.Duration, interval)); at.Before(end); {
			at = at.Add(interval)
			if err := target.scrape(ctx, p.Scrape, at); err != nil {
				return fmt.Errorf("parsing the scrape of phase %d: %w", i, err)
			}
			if err := groups.evaluate(ctx, at); err != nil {
				return err
			}
		}
		out.Alerts[i] = groups.firing()
	}
	for i, query := range in.Queries {
		if err := out.Answers[i].evaluate(ctx, engine, parse, series, query, at); err != nil {
			out.Answers[i].Error = err.Error()
		}
	}
	return json.NewEncoder(stdout).Encode(out)
}
