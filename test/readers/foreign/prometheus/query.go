package main

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
)

// sample is an element of an instant vector.
type sample struct {
	Labels map[string]string
	Value  string // a string, since JSON has no NaN
}

// answer is the result of a query.
type answer struct {
	Samples []sample
	Unknown []string `json:",omitempty"` // selectors that match no series
	Error   string   `json:",omitempty"`
}

func (a *answer) evaluate(ctx context.Context, engine *promql.Engine, parse parser.Parser, series storage.Queryable, text string, at time.Time) error {
	expr, err := parse.ParseExpr(text)
	if err != nil {
		return err
	}
	for _, selector := range parser.ExtractSelectors(expr) {
		querier, err := series.Querier(0, at.UnixMilli())
		if err != nil {
			return err
		}
		if found := querier.Select(ctx, false, nil, selector...); !found.Next() {
			a.Unknown = append(a.Unknown, fmt.Sprint(selector))
		}
		if err := querier.Close(); err != nil {
			return err
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
