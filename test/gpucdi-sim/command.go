package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// lockTimeout bounds the wait for other processes that change the driver.
const lockTimeout = 30 * time.Second

// usageError is an error in the command line. It makes gpucdi-sim exit with exitUsage.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// checkArgs marks the errors of check as usage errors.
func checkArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usagef("%w; usage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

// sim has the commands for the node that find returns.
type sim struct{ find func() (node, error) }

func newCommand(find func() (node, error)) *cobra.Command {
	s := sim{find}
	root := &cobra.Command{
		Use:   "gpucdi-sim",
		Short: "Change the simulated NVIDIA driver of the demo node",
		Long: `Change the simulated NVIDIA driver of the node that "KEEP=1 make demo" has started.

GPU is the N of /dev/nvidiaN, or a UUID. N does not change when another GPU is
removed. Each command returns when the change is visible to the node, and prints
the change in one line. Exit codes: 0 success, 1 failure, 2 usage error.`,
		Example: `  gpucdi-sim xid 3 79
  gpucdi-sim lose 0
  gpucdi-sim return 0
  gpucdi-sim mig 1 3g.40gb,3g.40gb
  gpucdi-sim driver upgrade`,
		SilenceErrors: true, SilenceUsage: true,
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(&cobra.Command{Hidden: true})
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; usage: %s", err, cmd.UseLine())
	})
	root.AddCommand(s.list(), s.xid(), s.lose(), s.remove(), s.hang(), s.returnGPU(), s.mig(), s.driver(), s.reset(), s.stop())
	return root
}

// onDriver calls do with the node's driver, and prints the text that it returns.
func (s sim) onDriver(cmd *cobra.Command, do func(*simdriver.Driver) (string, error)) error {
	n, err := s.find()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), lockTimeout)
	defer cancel()
	d, err := simdriver.Open(ctx, n.Root())
	if err != nil {
		return err
	}
	defer d.Close()
	line, err := do(d)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), line)
	return err
}

// onGPU calls do with a GPU of the node's driver, and prints the GPU and the text that do returns. It is an error if
// the driver is unloaded.
func (s sim) onGPU(cmd *cobra.Command, arg string, do func(*simdriver.Driver, simdriver.GPU) (string, error)) error {
	return s.onDriver(cmd, func(d *simdriver.Driver) (string, error) {
		state := d.State()
		if state.Unloaded {
			return "", fmt.Errorf("the driver is unloaded; load it with gpucdi-sim driver load")
		}
		g, err := findGPU(state, arg)
		if err != nil {
			return "", err
		}
		done, err := do(d, g)
		return fmt.Sprintf("GPU %d (%s): %s", g.Minor, g.UUID, done), err
	})
}

func (s sim) stop() *cobra.Command {
	return &cobra.Command{
		Use: "stop", Short: "Stop the node with its pods, and remove it",
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := s.find()
			if err != nil {
				return err
			}
			if err := n.Close(); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "node removed")
			return err
		},
	}
}
