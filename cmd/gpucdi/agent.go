package main

import (
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/cmd/internal/cli"
)

// ofAgent is a command that gpucdi-agent has: its flags, help and completions
// are that program's business.
func ofAgent(name, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use:                name,
		Short:              short,
		DisableFlagParsing: true,
		// In place of the root's: a signal that was caught here would be lost to the agent.
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		RunE:              func(*cobra.Command, []string) error { return becomeAgent() },
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			cobra.CheckErr(becomeAgent())
			return nil, cobra.ShellCompDirectiveError
		},
	}
	cmd.SetHelpFunc(func(*cobra.Command, []string) { cobra.CheckErr(becomeAgent()) })
	return cmd
}

// becomeAgent runs gpucdi-agent with the same arguments in place of this
// program: who sends signals to the one reaches the other. It returns only
// when that fails.
func becomeAgent() error {
	agent, err := cli.Beside(cli.Agent)
	if err != nil {
		return err
	}
	if err := syscall.Exec(agent, os.Args, os.Environ()); err != nil {
		return fmt.Errorf("starting %s: %w", agent, err)
	}
	return nil
}
