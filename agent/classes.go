package agent

import (
	"log/slog"
	"slices"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/internal/host"
)

// classes maintains the CDI specs of the auxiliary devices that are injected along with GPUs. If a class is
// unavailable, this is logged, and containers get their GPUs without it.
type classes struct {
	node   host.Root
	dir    string // CDI directory
	log    *slog.Logger
	files  map[cdi.Class]*cdi.File
	logged map[cdi.Class]string // latest error, already logged; empty if none

	built    []cdi.Class // wanted classes whose devices the node had at the last write
	injected []string    // CDI device names to inject along with GPUs
}

func newClasses(cfg Config, log *slog.Logger) classes {
	return classes{node: cfg.Node, dir: cfg.CDIDir, log: log, files: map[cdi.Class]*cdi.File{}, logged: map[cdi.Class]string{}}
}

// write writes the specs of the wanted classes.
func (c *classes) write(wanted []cdi.Class) {
	c.built, c.injected = nil, nil
	for _, class := range wanted {
		err := c.writeOne(class)
		if err == nil {
			c.injected = append(c.injected, cdi.AuxiliaryDeviceName(class))
		}
		c.logFailure(class, err)
	}
}

func (c *classes) writeOne(class cdi.Class) error {
	spec, err := cdi.BuildClass(cdi.AgentClassKind(class), class, c.node)
	if err != nil {
		return err
	}
	c.built = append(c.built, class)
	if c.files[class] == nil {
		c.files[class] = cdi.ClassFile(class, c.dir, c.node)
	}
	written, err := c.files[class].Put(spec)
	if written {
		c.log.Info("CDI spec written", "path", c.files[class].Path, "devices", len(spec.Devices))
	}
	if err != nil {
		return err
	}
	return cdi.CheckAuxiliaryDevice(class, spec)
}

// logFailure logs the error of a class unless it is the same as at the last write.
func (c *classes) logFailure(class cdi.Class, err error) {
	reason := errString(err)
	if reason != "" && reason != c.logged[class] {
		c.log.Warn("device class unavailable", "class", class, "reason", reason)
	}
	c.logged[class] = reason
}

// stale reports whether specs have to be written, because a class or one of its devices appeared or disappeared, or its
// spec or one of its device nodes changed.
func (c *classes) stale(wanted []cdi.Class) bool {
	var present []cdi.Class
	for _, class := range wanted {
		if spec, err := cdi.BuildClass(cdi.AgentClassKind(class), class, c.node); err == nil {
			present = append(present, class)
			if file := c.files[class]; file == nil || file.Stale() || !file.Has(spec) {
				return true
			}
		}
	}
	return !slices.Equal(present, c.built)
}
