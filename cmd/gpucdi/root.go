package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageError is an error of the caller's, not of the node.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func isUsage(err error) bool {
	var usage usageError
	return errors.As(err, &usage)
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "gpucdi",
		Short: "Give containers NVIDIA GPUs through CDI alone",
		Long: `gpucdi finds a node's NVIDIA GPUs, writes a CDI spec for them, and offers them
to the kubelet. Stock containerd or CRI-O does the rest: no NVIDIA runtime, no
hook, no container toolkit on the host.

Each flag can also be set by a variable: --host-root by GPUCDI_HOST_ROOT.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return fromEnvironment(cmd.Flags())
		},
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
	})
	root.AddCommand(newServeCommand(), newGenerateCommand(), newListCommand(), newStatusCommand(), newDoctorCommand(), newConfigCommand(), newUnlabelCommand(), newVersionCommand())
	return root
}

// usage makes the errors of args the caller's.
func usage(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if err := args(cmd, given); err != nil {
			return usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
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
		return usageError{err}
	}
	return nil
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of gpucdi",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "gpucdi", version)
			return err
		},
	}
}
