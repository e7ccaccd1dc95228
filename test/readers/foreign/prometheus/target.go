package main

import (
	"context"
	"errors"
	"io"
	"math"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
)

// target stores the samples of scrapes as Prometheus does: with the target labels, the series up, and staleness markers
// for series that have disappeared.
type target struct {
	series storage.Storage
	labels map[string]string
	last   map[string]labels.Labels // the series of the latest scrape
}

// scrape stores a response. An empty one is a failed scrape.
func (t *target) scrape(ctx context.Context, text string, at time.Time) error {
	samples := map[string]labels.Labels{}
	app := t.series.Appender(ctx)
	store := func(own labels.Labels, value float64) error {
		all := t.withTarget(own)
		samples[all.String()] = all
		_, err := app.Append(0, all, at.UnixMilli(), value)
		return err
	}
	up := 1.0
	if text == "" {
		up = 0
	}
	err := errors.Join(store(labels.FromStrings(labels.MetricName, "up"), up), parse(text, store))
	for key, ended := range t.last {
		if _, ok := samples[key]; !ok {
			_, e := app.Append(0, ended, at.UnixMilli(), math.Float64frombits(value.StaleNaN))
			err = errors.Join(err, e)
		}
	}
	t.last = samples
	if err != nil {
		return errors.Join(err, app.Rollback())
	}
	return app.Commit()
}

// withTarget adds the labels of the target. The labels of the metric take precedence, as with honorLabels.
func (t *target) withTarget(own labels.Labels) labels.Labels {
	all := labels.NewBuilder(own)
	for name, value := range t.labels {
		if !own.Has(name) {
			all.Set(name, value)
		}
	}
	return all.Labels()
}

// parse calls store for each sample of a response.
func parse(text string, store func(labels.Labels, float64) error) error {
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
		_, _, value := p.Series()
		if err := store(own, value); err != nil {
			return err
		}
	}
}
