package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
)

type generateFlags struct {
	hostFlags
	kind, class, output, check, format, hook string
	names, features, devices                 []string
}

func newGenerateCommand() *cobra.Command {
	var g generateFlags
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Generate a CDI spec for the GPUs of the node",
		Long: `Generate a CDI spec for the GPUs of the node, for use with nerdctl, podman and
docker: --device nvidia.com/gpu=0, =GPU-… or =all. A GPU in MIG mode is
represented by its MIG devices: =0:1 or =MIG-….`,
		Example: `  gpucdi generate
  gpucdi generate --output /etc/cdi/nvidia.yaml
  gpucdi generate --check /etc/cdi/nvidia.yaml`,
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := g.validate(cmd); err != nil {
				return usage(err)
			}
			spec, err := g.spec(cmd.Context(), slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
			if err != nil {
				return err
			}
			return g.write(cmd.OutOrStdout(), spec)
		},
	}
	flags := cmd.Flags()
	g.register(flags)
	flags.StringVar(&g.class, "class", gpuClass, "class of devices: gpu, or devices used with GPUs: "+otherClasses())
	flags.StringVar(&g.kind, "kind", "", "CDI kind of the devices, vendor/class (default: nvidia.com/ and the class)")
	flags.StringVar(&g.output, "output", "", "file to write (default: standard output)")
	flags.StringVar(&g.check, "check", "", "file to compare instead of writing; if it is stale, print the diff and exit with 1")
	flags.StringSliceVar(&g.devices, "device", nil, "GPUs and MIG devices to include, by index or UUID (default: all)")
	flags.StringVar(&g.format, "format", string(cdi.YAML), "output format: yaml, json; if not set, the file name extension decides")
	flags.StringSliceVar(&g.features, "features", nil,
		"driver capabilities to expose to containers: compute, utility, graphics, video, display (default: compute and utility, and video if the driver has it)")
	flags.StringVar(&g.hook, "hook", "", "path of gpucdi-hook on the node, for images whose loader does not find the driver (default: none)")
	flags.StringSliceVar(&g.names, "names", []string{string(cdi.ByIndex), string(cdi.ByUUID)}, "device names of each GPU: index, uuid or both")
	return cmd
}

// gpuClass is the default of --class.
const gpuClass = "gpu"

func otherClasses() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(cdi.Classes()), " ", ", "), "[]")
}

// validate sets defaults that depend on other flags, and returns all problems of the flags in one error.
func (g *generateFlags) validate(cmd *cobra.Command) error {
	var errs []error
	if g.class != gpuClass && !slices.Contains(cdi.Classes(), cdi.Class(g.class)) {
		errs = append(errs, fmt.Errorf("--class %q is not one of %s, %s", g.class, gpuClass, otherClasses()))
	}
	if slices.Contains(cdi.Classes(), cdi.Class(g.class)) {
		errs = append(errs, onlyForGPUs(cmd.Flags()))
	}
	if g.kind == "" {
		g.kind = cdi.UserVendor + "/" + g.class
	}
	vendor, class := parser.ParseQualifier(g.kind)
	if err := errors.Join(parser.ValidateVendorName(vendor), parser.ValidateClassName(class)); err != nil {
		errs = append(errs, fmt.Errorf("--kind %q is not vendor/class: %w", g.kind, err))
	}
	if g.hook != "" && !filepath.IsAbs(g.hook) {
		errs = append(errs, fmt.Errorf("--hook %q is not an absolute path", g.hook))
	}
	if g.output != "" && g.check != "" {
		errs = append(errs, errors.New("--output and --check are mutually exclusive"))
	}
	formats := []string{string(cdi.YAML), string(cdi.JSON)}
	extension := strings.TrimPrefix(filepath.Ext(cmp.Or(g.output, g.check)), ".")
	if g.output != "" && !slices.Contains(formats, extension) {
		errs = append(errs, fmt.Errorf("--output %q does not end in .yaml or .json, so container runtimes would ignore it", g.output))
	}
	if !cmd.Flags().Changed("format") && extension == string(cdi.JSON) {
		g.format = extension
	}
	if !slices.Contains(formats, g.format) {
		errs = append(errs, fmt.Errorf("--format %q is neither yaml nor json", g.format))
	}
	for _, name := range g.names {
		if !slices.Contains([]string{string(cdi.ByIndex), string(cdi.ByUUID)}, name) {
			errs = append(errs, fmt.Errorf("--names %q is neither index nor uuid", name))
		}
	}
	if len(g.names) == 0 {
		errs = append(errs, errors.New("--names is empty; set index, uuid or both"))
	}
	if err := g.driverFeatures().Validate(); err != nil {
		errs = append(errs, fmt.Errorf("--features: %w", err))
	}
	return errors.Join(errs...)
}

// onlyForGPUs returns an error if flags are set that apply to the class gpu only.
func onlyForGPUs(flags *pflag.FlagSet) error {
	var errs []error
	for _, name := range []string{"device", "features", "hook", "names"} {
		if flags.Changed(name) {
			errs = append(errs, fmt.Errorf("--%s applies to --class %s only", name, gpuClass))
		}
	}
	return errors.Join(errs...)
}

func (g *generateFlags) driverFeatures() cdi.Features {
	features := make(cdi.Features, len(g.features))
	for i, name := range g.features {
		features[i] = cdi.Feature(name)
	}
	return features
}

// spec builds the spec of the healthy GPUs and MIG devices, and logs a warning for each excluded one. For a class other
// than gpu, it builds the spec of the devices of that class.
func (g *generateFlags) spec(ctx context.Context, log *slog.Logger) (*specs.Spec, error) {
	if g.class != gpuClass {
		return cdi.BuildClass(g.kind, cdi.Class(g.class), g.root())
	}
	snapshot, err := readInventory(ctx, g.hostFlags)
	if err != nil {
		return nil, err
	}
	parts, err := cdi.Inspect(g.root(), snapshot.Driver, snapshot.Inventory, g.driverFeatures())
	if err != nil {
		return nil, err
	}
	parts.Hook = g.hook
	if len(g.devices) > 0 {
		if parts, err = parts.Select(snapshot.Inventory, g.devices); err != nil {
			return nil, err
		}
	}
	healthy := &gpu.Inventory{Driver: snapshot.Inventory.Driver}
	for _, found := range snapshot.Inventory.WithFaults(func(uuid string) gpu.Fault { return parts.Faults[uuid] }).GPUs {
		if !found.Fault.None() {
			log.Warn("GPU excluded", "gpu", found.UUID, "index", found.Index, "reason", found.Fault.String())
			continue
		}
		if found.MIG == gpu.MIGEnabled && len(found.MIGDevices) == 0 {
			log.Warn("GPU excluded", "gpu", found.UUID, "index", found.Index, "reason", "in MIG mode without MIG devices; partition it")
		}
		found.MIGDevices = slices.DeleteFunc(found.MIGDevices, func(m gpu.MIGDevice) bool {
			if !m.Fault.None() {
				log.Warn("MIG device excluded", "mig", m.UUID, "index", fmt.Sprintf("%d:%d", found.Index, m.Index), "reason", m.Fault.String())
			}
			return !m.Fault.None()
		})
		healthy.GPUs = append(healthy.GPUs, found)
	}
	for _, u := range snapshot.Inventory.Unreadable {
		log.Warn("GPU excluded", "index", u.Index, "reason", u.Fault.String())
	}
	names := make([]cdi.NameStrategy, len(g.names))
	for i, name := range g.names {
		names[i] = cdi.NameStrategy(name)
	}
	return cdi.Build(g.kind, healthy, parts, names)
}

func (g *generateFlags) write(stdout io.Writer, spec *specs.Spec) error {
	if g.output != "" {
		store := cdi.NewFile(g.output, cdi.Format(g.format), g.root())
		written, err := store.Put(spec)
		if written && err != nil {
			return fmt.Errorf("wrote %s, but container runtimes cannot use it yet: %w", g.output, err)
		}
		return err
	}
	data, err := cdi.Format(g.format).Marshal(spec)
	if err != nil {
		return err
	}
	if g.check != "" {
		return check(stdout, g.check, data)
	}
	_, err = stdout.Write(data)
	return err
}
