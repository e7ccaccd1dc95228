package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
)

// groups are the rule groups of a file.
type groups []*rules.Group

// alert is a firing alert.
type alert struct {
	Name                string
	Labels, Annotations map[string]string
}

// load validates the content of a rule file, which may be empty, and prepares its evaluation. Unknown fields are an
// error.
func load(ctx context.Context, content string, engine *promql.Engine, series storage.Storage, parse parser.Parser) (groups, error) {
	const ignoreUnknownFields = false
	if content == "" {
		return nil, nil
	}
	if _, errs := rulefmt.Parse([]byte(content), ignoreUnknownFields, model.UTF8Validation, parse, promslog.NewNopLogger()); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	file, err := os.CreateTemp("", "rules-*.yaml")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	_, err = file.WriteString(content)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc:  rules.EngineQueryFunc(engine, series),
		Appendable: series,
		Queryable:  series,
		Context:    ctx,
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
		Logger:     promslog.NewNopLogger(),
		Parser:     parse,
	})
	byName, errs := manager.LoadGroups(interval, labels.EmptyLabels(), "", nil, ignoreUnknownFields, file.Name())
	var all groups
	for _, g := range byName {
		all = append(all, g)
		for _, r := range g.AlertingRules() {
			r.SetRestored(true) // there is no earlier state; a rule writes the series ALERTS only once its state is restored
		}
	}
	return all, errors.Join(errs...)
}

// evaluate evaluates all rules. Alerts are also stored as the series ALERTS.
func (all groups) evaluate(ctx context.Context, at time.Time) error {
	for _, g := range all {
		g.Eval(ctx, at)
		for _, r := range g.Rules() {
			if err := r.LastError(); err != nil {
				return fmt.Errorf("evaluating %s: %w", r.Name(), err)
			}
		}
	}
	return nil
}

// firing returns the alerts that fire, sorted by name and labels.
func (all groups) firing() []alert {
	firing := []alert{}
	for _, g := range all {
		for _, r := range g.AlertingRules() {
			for _, a := range r.ActiveAlerts() {
				if a.State == rules.StateFiring {
					firing = append(firing, alert{r.Name(), a.Labels.Map(), a.Annotations.Map()})
				}
			}
		}
	}
	slices.SortFunc(firing, func(a, b alert) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return firing
}
