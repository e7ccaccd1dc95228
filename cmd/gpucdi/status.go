package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"

	"github.com/gpucdi/gpucdi/status"
)

// defaultAddress is where an agent listens that is told nothing else.
const defaultAddress = "127.0.0.1:9435"

// watchInterval is the time between two looks of status --watch.
const watchInterval = 2 * time.Second

// clearScreen moves to the top left and clears what is below.
const clearScreen = "\x1b[H\x1b[J"

func newStatusCommand() *cobra.Command {
	var (
		address, output string
		watch           bool
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show agent status",
		Long: `Show agent status: each device with its health and the pod that holds it, and the
links from the driver to the kubelet. In a cluster:

  kubectl exec --namespace gpucdi daemonset/gpucdi -- gpucdi status`,
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"table", "wide", "json", "yaml"}, output) {
				return usage(fmt.Errorf("--output %q is none of table, wide, json and yaml", output))
			}
			show := func() error {
				node, err := status.Fetch(cmd.Context(), address)
				if err != nil {
					return err
				}
				return writeStatus(cmd.OutOrStdout(), node, output)
			}
			if !watch {
				return show()
			}
			return repeat(cmd.Context(), func() error {
				if onTerminal(cmd.OutOrStdout()) {
					fmt.Fprint(cmd.OutOrStdout(), clearScreen)
				}
				return show()
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&address, "address", defaultAddress, "where the agent listens")
	flags.StringVarP(&output, "output", "o", "table", "table, wide, json or yaml")
	flags.BoolVarP(&watch, "watch", "w", false, "show it again every two seconds, until interrupted")
	return cmd
}

// repeat does something again and again until ctx ends or it fails.
func repeat(ctx context.Context, do func() error) error {
	for {
		err := do()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchInterval):
		}
	}
}

func writeStatus(w io.Writer, node status.Node, output string) error {
	switch output {
	case "json":
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(node)
	case "yaml":
		data, err := asYAML(node)
		if err != nil {
			return fmt.Errorf("writing the status as YAML: %w", err)
		}
		_, err = fmt.Fprintf(w, "---\n%s", data)
		return err
	}
	return writeStatusTables(w, node, output == "wide", painterOf(w))
}

// asYAML renders a value with the names and the omissions of its JSON.
func asYAML(value any) ([]byte, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var plain any
	if err := yaml.Unmarshal(data, &plain); err != nil { // JSON is YAML
		return nil, err
	}
	return yaml.Marshal(plain)
}

// painterOf returns a painter that has colours on a terminal only.
func painterOf(w io.Writer) painter {
	if onTerminal(w) && os.Getenv("NO_COLOR") == "" {
		return coloured
	}
	return plain
}

func onTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
