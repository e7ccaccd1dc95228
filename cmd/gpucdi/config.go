package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Validate NodeConfig files",
		Args:  checkArgs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigCheckCommand())
	return cmd
}

func newConfigCheckCommand() *cobra.Command {
	var explain explanation
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Validate a NodeConfig file",
		Long: `Validate a NodeConfig file and report all its problems. If FILE is -, read
standard input. The exit code is 1 if the file is invalid.

With --explain, print the resource under which each GPU and MIG device of this
node would be advertised, and the rule that selects it. With --inventory, use the
GPUs of another node.`,
		Example: `  gpucdi config check config.yaml
  gpucdi config check config.yaml --explain --node-labels nvidia.com/device-plugin.config=shared
  gpucdi config check config.yaml --explain --inventory inventory.json
  kubectl get configmap gpucdi --namespace gpucdi --output jsonpath='{.data.config\.yaml}' | gpucdi config check -`,
		Args: checkArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			file, err := readConfig(cmd.InOrStdin(), name)
			if err != nil {
				return err
			}
			if explain.wanted || explain.inventory != "" {
				return explain.write(cmd, file)
			}
			if name == "-" {
				name = "standard input"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is valid\n", name)
			return nil
		},
	}
	explain.register(cmd.Flags())
	return cmd
}

// readConfig reads a config file, or standard input for "-".
func readConfig(stdin io.Reader, name string) (*config.File, error) {
	if name != "-" {
		return config.Load(name)
	}
	file, err := config.Read(stdin)
	if err != nil {
		return nil, fmt.Errorf("reading config from standard input: %w", err)
	}
	return file, nil
}

// explanation prints the resource of each device under a config.
type explanation struct {
	wanted    bool
	host      hostFlags
	inventory string // file; empty: the inventory of this node
	node      config.Node
}

func (e *explanation) register(flags *pflag.FlagSet) {
	flags.BoolVar(&e.wanted, "explain", false, "print the resource of each GPU and MIG device")
	flags.StringVar(&e.inventory, "inventory", "", "output of \"gpucdi list -o json\" to use in place of the GPUs of this node; implies --explain")
	flags.StringVar(&e.node.Name, "node-name", "", "with --explain, name of the node in Kubernetes, for config sections that select by name")
	flags.StringToStringVar(&e.node.Labels, "node-labels", nil, "with --explain, labels of the node as KEY=VALUE, for config sections that select by label")
	e.host.register(flags)
}

func (e *explanation) write(cmd *cobra.Command, file *config.File) error {
	effective, err := file.For(e.node)
	if err != nil {
		return err
	}
	inv, err := e.read(cmd)
	if err != nil {
		return err
	}
	table := newTable(cmd.OutOrStdout())
	table.Row("INDEX", "UUID", "PRODUCT", "RESOURCE", "MODE", "REPLICAS", "RULE", "FAULT")
	for _, a := range allocator.Assign(inv, effective.Policy()) {
		rule := "default"
		if a.Position >= 0 {
			rule = fmt.Sprintf("resources[%d]", a.Position)
		}
		replicas := strconv.Itoa(max(1, a.Rule.Replicas))
		if a.Rule.Share == allocator.ShareMemory {
			replicas = a.Device.Capacity.String()
		}
		table.Row(a.Device.Index, a.Device.ID, product(a), cmp.Or(a.Resource, "excluded"), cmp.Or(a.Mode(), "-"), replicas, rule,
			cmp.Or(a.Device.Fault.String(), "-"))
	}
	return table.Flush()
}

// inventoryLimit bounds the size of an inventory file, in bytes.
const inventoryLimit = 16 << 20

func (e *explanation) read(cmd *cobra.Command) (*gpu.Inventory, error) {
	if e.inventory == "" {
		snapshot, err := readInventory(cmd.Context(), e.host)
		if err != nil {
			return nil, fmt.Errorf("%w; for the GPUs of another node, set --inventory", err)
		}
		return snapshot.Inventory, nil
	}
	data, err := host.ReadFile(e.inventory, inventoryLimit)
	if err != nil {
		return nil, fmt.Errorf("reading the inventory: %w", err)
	}
	var inv gpu.Inventory
	if err := json.Unmarshal(data, &inv); err != nil {
		return nil, fmt.Errorf("reading the inventory %s, which must be output of \"gpucdi list -o json\": %w", e.inventory, err)
	}
	return &inv, nil
}

// product returns the product name of a device; for a MIG device it includes the profile.
func product(a allocator.Assignment) string {
	name := cmp.Or(a.GPU.Product, "-")
	if m, isMIG := a.GPU.MIGDevice(a.Device.ID); isMIG {
		name += strings.TrimRight(" MIG "+m.Profile, " ")
	}
	return name
}
