// Command grafana reads a dashboard into Grafana's own types, and refuses what
// these do not have.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func main() {
	if err := read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(in io.Reader) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	known := cog.NewRuntime()
	known.RegisterDataqueryVariant(prometheus.VariantConfig())
	known.RegisterPanelcfgVariant(stat.VariantConfig())
	known.RegisterPanelcfgVariant(table.VariantConfig())
	known.RegisterPanelcfgVariant(timeseries.VariantConfig())
	var d dashboard.Dashboard
	// Where nothing is wrong, these return an error without a word.
	for _, check := range []func() error{
		func() error { return d.UnmarshalJSONStrict(text) },
		d.Validate,
	} {
		if err := check(); err != nil && err.Error() != "" {
			return err
		}
	}
	return nil
}
