// Command promql evaluates queries over scrapes of one target, with the parsers and the engine of Prometheus.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// interval is the time between two scrapes.
const interval = 30 * time.Second

// input is read from standard input as JSON.
type input struct {
	Scrapes []string          // responses of the target, oldest first
	Target  map[string]string // labels of the target; a metric's own labels take precedence, as with honorLabels
	Queries []string
}

// sample is an element of an instant vector.
type sample struct {
	Labels map[string]string
	Value  string // a string, since JSON has no NaN
}

// answer is the result of a query. All answers are written to standard output as JSON.
type answer struct {
	Samples []sample
	Unknown []string `json:",omitempty"` // selectors that match no series
	Error   string   `json:",omitempty"`
}

func main() {
	if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in io.Reader, out io.Writer) error {
	var q input
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("decoding the input: %w", err)
	}
	series := &memory{}
	var at time.Time
	for i, text := range q.Scrapes {
		at = time.Unix(0, 0).Add(time.Duration(i+1) * interval)
		if err := series.scrape(text, q.Target, at); err != nil {
			return fmt.Errorf("parsing scrape %d: %w", i, err)
		}
	}
	parse := parser.NewParser(parser.Options{})
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: parse})
	answers := make([]answer, len(q.Queries))
	for i, query := range q.Queries {
		if err := answers[i].evaluate(ctx, engine, parse, series, query, at); err != nil {
			answers[i].Error = err.Error()
		}
	}
	return json.NewEncoder(out).Encode(answers)
}

// scrape adds the samples of a response.
func (m *memory) scrape(text string, target map[string]string, at time.Time) error {
	p := textparse.NewPromParser([]byte(text), labels.NewSymbolTable(), false)
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var own labels.Labels
		p.Labels(&own)
		all := labels.NewBuilder(own)
		for name, value := range target {
			if !own.Has(name) {
				all.Set(name, value)
			}
		}
		_, _, value := p.Series()
		m.add(all.Labels(), at, value)
	}
}

func (a *answer) evaluate(ctx context.Context, engine *promql.Engine, parse parser.Parser, series *memory, text string, at time.Time) error {
	expr, err := parse.ParseExpr(text)
	if err != nil {
		return err
	}
	for _, selector := range parser.ExtractSelectors(expr) {
		if len(series.matching(selector)) == 0 {
			a.Unknown = append(a.Unknown, fmt.Sprint(selector))
		}
	}
	query, err := engine.NewInstantQuery(ctx, series, nil, text, at)
	if err != nil {
		return err
	}
	defer query.Close()
	vector, err := query.Exec(ctx).Vector()
	for _, s := range vector {
		a.Samples = append(a.Samples, sample{s.Metric.Map(), fmt.Sprint(s.F)})
	}
	return err
}
