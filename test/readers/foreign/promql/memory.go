package main

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// memory is a storage.Queryable with all samples in memory.
type memory struct {
	storage.MockQuerier // for label queries
	all                 []*promql.Series
}

func (m *memory) add(l labels.Labels, at time.Time, value float64) {
	i := slices.IndexFunc(m.all, func(s *promql.Series) bool { return labels.Equal(s.Metric, l) })
	if i < 0 {
		i = len(m.all)
		m.all = append(m.all, &promql.Series{Metric: l})
	}
	m.all[i].Floats = append(m.all[i].Floats, promql.FPoint{T: at.UnixMilli(), F: value})
}

func (m *memory) matching(matchers []*labels.Matcher) (found []*promql.Series) {
	for _, s := range m.all {
		if !slices.ContainsFunc(matchers, func(want *labels.Matcher) bool { return !want.Matches(s.Metric.Get(want.Name)) }) {
			found = append(found, s)
		}
	}
	return found
}

// Querier implements storage.Queryable.
func (m *memory) Querier(int64, int64) (storage.Querier, error) { return m, nil }

// Select implements storage.Querier.
func (m *memory) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	return &set{next: m.matching(matchers)}
}

// set implements storage.SeriesSet.
type set struct {
	next    []*promql.Series
	current *promql.Series
}

func (s *set) Next() bool {
	if len(s.next) == 0 {
		return false
	}
	s.current, s.next = s.next[0], s.next[1:]
	return true
}

func (s *set) At() storage.Series                { return promql.NewStorageSeries(*s.current) }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }
