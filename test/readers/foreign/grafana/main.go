// Command grafana decodes a dashboard into Grafana's types. It rejects unknown fields, except within panels.
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
	runtime := cog.NewRuntime()
	runtime.RegisterDataqueryVariant(prometheus.VariantConfig())
	runtime.RegisterPanelcfgVariant(stat.VariantConfig())
	runtime.RegisterPanelcfgVariant(table.VariantConfig())
	runtime.RegisterPanelcfgVariant(timeseries.VariantConfig())
	var d dashboard.Dashboard
	// For a valid dashboard, these return an error with an empty message.
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
