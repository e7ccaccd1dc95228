package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newRootCommand returns gpucdi with all its subcommands. SIGTERM or SIGINT ends the context of a command.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "gpucdi",
		Short: "Give containers NVIDIA GPUs using only CDI",
		Long: `gpucdi discovers the NVIDIA GPUs of a node, writes a CDI spec for them, and
advertises them to the kubelet. Stock containerd or CRI-O injects them, without an
NVIDIA runtime, a hook or the container toolkit on the host.

Each flag can also be set by an environment variable, such as --host-root by
GPUCDI_HOST_ROOT. For shell completion, see gpucdi completion --help.`,
		Args:          checkArgs(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			ctx, _ := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, os.Interrupt) // until the process ends
			cmd.SetContext(ctx)
			return fromEnvironment(cmd.Flags())
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	})
	root.AddCommand(newServeCommand(), newStatusCommand(), newExplainCommand(), newDoctorCommand(), newListCommand(),
		newCordonCommand(), newUncordonCommand(),
		newGenerateCommand(), newConfigCommand(), newUnlabelCommand(), newClaimsCommand(), newTemplatesCommand(), newMPSCommand(), newVersionCommand(), newProbeCommand())
	return root
}

// usageError is an error in the command line or in an environment variable. It makes gpucdi exit with exitUsage.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// usage marks err as a usage error.
func usage(err error) error { return usageError{err} }

// checkArgs marks the errors of check as usage errors.
func checkArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usage(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
		}
		return nil
	}
}

// fromEnvironment sets flags from environment variables, except those that the command line sets.
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
		return usage(err)
	}
	return nil
}
