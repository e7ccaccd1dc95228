// Package cli is what the commands of gpucdi have in common, whichever of its
// programs they are in.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Version is stamped by the build.
var Version = "dev"

// The exit codes that scripts may rely on.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// Main runs the command that the arguments name and ends the process. The
// command's context ends when ctx does, or with the signal to end. Either program
// calls itself gpucdi, which is what people type.
func Main(ctx context.Context, root *cobra.Command) {
	complete(root)
	err := root.ExecuteContext(ctx)
	if err == nil {
		os.Exit(exitDone)
	}
	fmt.Fprintf(os.Stderr, "gpucdi: %s\n", Indented(err.Error(), 2))
	if errors.As(err, new(usageError)) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}

// complete gives the root of the commands what is the same in each program.
func complete(root *cobra.Command) {
	root.Use = "gpucdi"
	root.SilenceUsage = true
	root.SilenceErrors = true
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		ctx, _ := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, os.Interrupt) // till the process ends
		cmd.SetContext(ctx)
		return fromEnvironment(cmd.Flags())
	}
	root.Args = Args(cobra.NoArgs)
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usage(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	})
}

// usageError is an error of the caller's, not of the node.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usage makes err the caller's: the exit code says so.
func Usage(err error) error { return usageError{err} }

// Args makes the errors of args the caller's.
func Args(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if err := args(cmd, given); err != nil {
			return Usage(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
		}
		return nil
	}
}

// fromEnvironment sets each flag that was not given from its variable.
func fromEnvironment(flags *pflag.FlagSet) error {
	var errs []error
	flags.VisitAll(func(flag *pflag.Flag) {
		name := "GPUCDI_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value, set := os.LookupEnv(name)
		if !set || flag.Changed || flag.Name == "help" {
			return
		}
		if err := flags.Set(flag.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("reading %s=%q: %w", name, value, err))
		}
	})
	if err := errors.Join(errs...); err != nil {
		return Usage(err)
	}
	return nil
}
