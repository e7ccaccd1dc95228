package agent

import (
	"errors"
	"log/slog"
	"slices"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/internal/config"
	"github.com/gpucdi/gpucdi/internal/host"
)

// classes are the devices besides GPUs that go with each GPU.
type classes struct {
	node  host.Root
	dir   string // of the CDI specs
	log   *slog.Logger
	files map[config.Class]*cdi.File
	said  map[config.Class]string // why one does not go with GPUs now

	given []string // the CDI names of those that do
}

// write puts the specs of the wanted classes on disk. A class that the node does
// not have is no error: its pods get GPUs without.
func (c *classes) write(wanted []config.Class) error {
	c.given = nil
	var errs []error
	for _, class := range wanted {
		err := c.writeOne(class)
		missing := (*cdi.AbsentError)(nil)
		switch {
		case err == nil:
			delete(c.said, class)
			c.given = append(c.given, cdi.WithGPUs(class))
		case !errors.As(err, &missing):
			errs = append(errs, err)
		case c.said[class] != err.Error():
			c.said[class] = err.Error()
			c.log.Warn("pods get GPUs without devices of a class", "class", class, "reason", err)
		}
	}
	return errors.Join(errs...)
}

func (c *classes) writeOne(class config.Class) error {
	spec, err := cdi.BuildClass(cdi.AgentKindOf(class), class, c.node)
	if err != nil {
		return err
	}
	if c.files[class] == nil {
		c.files[class] = cdi.ClassFile(class, c.dir, c.node)
	}
	written, err := c.files[class].Put(spec)
	if written {
		c.log.Info("CDI spec written", "path", c.files[class].Path, "devices", len(spec.Devices))
	}
	return err
}

// touched says whether there is something to write: a class came or went, or
// one of its nodes is another now.
func (c *classes) touched(wanted []config.Class) bool {
	var present []string
	for _, class := range wanted {
		if _, err := cdi.BuildClass(cdi.AgentKindOf(class), class, c.node); err == nil {
			present = append(present, cdi.WithGPUs(class))
			if file := c.files[class]; file == nil || file.Touched() {
				return true
			}
		}
	}
	return !slices.Equal(present, c.given)
}
