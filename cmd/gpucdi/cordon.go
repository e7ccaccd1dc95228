package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/cordon"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/status"
)

// cordonFlags are the flags of cordon and uncordon.
type cordonFlags struct {
	host              hostFlags
	address, stateDir string
}

func (f *cordonFlags) register(cmd *cobra.Command) {
	f.host.register(cmd.Flags())
	cmd.Flags().StringVar(&f.address, "address", defaultAddress, "address of the agent, host:port")
	cmd.Flags().StringVar(&f.stateDir, "state-dir", "/run/gpucdi", "state directory of the agent")
}

func newCordonCommand() *cobra.Command {
	var (
		flags  cordonFlags
		reason string
	)
	cmd := &cobra.Command{
		Use:   "cordon GPU",
		Short: "Stop allocating a GPU to new pods",
		Long: `Stop allocating a GPU or MIG device to new pods. Running pods keep it. GPU is an
index such as 3 or 3:1, or a UUID. The device is unhealthy with the fault code
cordoned until you run gpucdi uncordon, even if the agent restarts or the GPU is
gone meanwhile. If no agent runs, the cordon takes effect when one starts.

A reboot of the node ends the cordon. To remove a GPU permanently, use a rule with
exclude in the config.`,
		Example: `  kubectl exec --namespace gpucdi "$agent" -- gpucdi cordon 3 --reason "fan replacement"`,
		Args:    checkArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cordon.CheckReason(reason); err != nil {
				return usage(fmt.Errorf("--reason: %w", err))
			}
			device, store, err := flags.find(cmd.Context(), args[0])
			if err != nil {
				return fmt.Errorf("cordoning %q: %w", args[0], err)
			}
			if err := store.Set(device.uuid, reason, time.Now()); err != nil {
				return err
			}
			line(cmd.OutOrStdout(), "%s cordoned", device)
			return nil
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", fmt.Sprintf("reason to report with the device, at most %d bytes", cordon.MaxReason))
	return cmd
}

func newUncordonCommand() *cobra.Command {
	var flags cordonFlags
	cmd := &cobra.Command{
		Use:   "uncordon GPU",
		Short: "Allocate a cordoned GPU to pods again",
		Long: `Allocate a cordoned GPU or MIG device to pods again. GPU is an index such as 3 or
3:1, or a UUID.`,
		Example: `  kubectl exec --namespace gpucdi "$agent" -- gpucdi uncordon 3`,
		Args:    checkArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			device, store, err := flags.find(cmd.Context(), args[0])
			if err != nil {
				return fmt.Errorf("uncordoning %q: %w", args[0], err)
			}
			removed, err := store.Remove(device.uuid)
			if err != nil {
				return err
			}
			return reportUncordoned(cmd.OutOrStdout(), device, removed, store)
		},
	}
	flags.register(cmd)
	return cmd
}

// reportUncordoned reports the end of a cordon. It returns an error if the GPU of a MIG device is still cordoned.
func reportUncordoned(w io.Writer, device cordonable, removed bool, store cordon.Store) error {
	all, err := store.List()
	if _, parent := all[device.parent]; parent {
		return fmt.Errorf("%s stays cordoned with its GPU; run gpucdi uncordon %s", device, device.parent)
	}
	if !removed {
		line(w, "%s is not cordoned", device)
		return err
	}
	line(w, "%s uncordoned", device)
	if device.parent != "" {
		return err // of List: the GPU of the MIG device may still be cordoned
	}
	return nil
}

// cordonable is a GPU or MIG device.
type cordonable struct {
	index, uuid string // index is empty if the device is not on the node
	parent      string // UUID of the GPU of a MIG device
}

func (d cordonable) String() string {
	if d.index == "" {
		return fmt.Sprintf("%s (not found on this node)", d.uuid)
	}
	return fmt.Sprintf("GPU %s (%s)", d.index, d.uuid)
}

// find returns the device with an index or a UUID, and the store of cordons.
func (f *cordonFlags) find(ctx context.Context, name string) (cordonable, cordon.Store, error) {
	if f.stateDir == "" {
		return cordonable{}, cordon.Store{}, usage(errors.New("--state-dir is empty; set it to the state directory of the agent"))
	}
	store := cordon.Open(f.stateDir)
	gpus, err := f.gpus(ctx)
	device, found := named(name, cordonables(gpus))
	switch {
	case found:
		return device, store, nil
	case err != nil:
		return cordonable{}, store, fmt.Errorf("the GPUs of the node are unknown: %w; use a UUID", err)
	}
	return cordonable{}, store, errors.New("no such GPU on this node; run gpucdi list, or use a UUID")
}

// named returns the device with an index or a UUID, whose case is ignored. A UUID need not be in devices: the GPU may
// return later, and without the driver no device is known.
func named(name string, devices []cordonable) (device cordonable, found bool) {
	for _, d := range devices {
		if name != "" && name == d.index || strings.EqualFold(name, d.uuid) {
			return d, true
		}
	}
	prefix, rest, _ := strings.Cut(name, "-")
	uuid := strings.ToUpper(prefix) + "-" + strings.ToLower(rest) // as NVML returns it
	return cordonable{uuid: uuid}, cordon.IsUUID(uuid)
}

// gpus returns the GPUs of the node from the agent or, if it does not respond or reports none, from the driver.
func (f *cordonFlags) gpus(ctx context.Context) (gpus []gpu.GPU, err error) {
	node, err := status.Fetch(ctx, f.address)
	if err == nil && len(node.GPUs) > 0 {
		for _, g := range node.GPUs {
			gpus = append(gpus, g.GPU)
		}
		return gpus, nil
	}
	snapshot, err := readInventory(ctx, f.host)
	if err != nil {
		return nil, err
	}
	return snapshot.Inventory.GPUs, nil
}

// cordonables returns the GPUs and their MIG devices. A GPU that is gone has no index, since another GPU may have it.
func cordonables(gpus []gpu.GPU) (all []cordonable) {
	for _, g := range gpus {
		index := fmt.Sprint(g.Index)
		if g.Fault.Code == gpu.FaultGone {
			index = ""
		}
		all = append(all, cordonable{index: index, uuid: g.UUID})
		for _, m := range g.MIGDevices {
			d := cordonable{uuid: m.UUID, parent: g.UUID}
			if index != "" && m.Fault.Code != gpu.FaultGone {
				d.index = fmt.Sprintf("%s:%d", index, m.Index)
			}
			all = append(all, d)
		}
	}
	return all
}
