package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "write docs/cli.md")

// docs/cli.md contains the help of each command.
func TestReference(t *testing.T) {
	const path = "../../docs/cli.md"
	var page strings.Builder
	page.WriteString(`# Command line
Each flag can also be set by an environment variable, such as ` + "`--host-root` by `GPUCDI_HOST_ROOT`" + `. Exit codes: 0 success, 1
failure, 2 usage error.

This page contains the output of ` + "`gpucdi COMMAND --help`; `make reference`" + ` writes it.
`)
	root := newRootCommand()
	root.InitDefaultHelpFlag()
	writeHelp(&page, root)
	if *update {
		if err := os.WriteFile(path, []byte(page.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != page.String() {
		t.Error("docs/cli.md is stale; run make reference")
	}
}

func writeHelp(page *strings.Builder, cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		sub.InitDefaultHelpFlag()
		fmt.Fprintf(page, "\n## %s\n```text\n%s\n\n%s```\n", sub.CommandPath(), cmp.Or(sub.Long, sub.Short), sub.UsageString())
		writeHelp(page, sub)
	}
}
