package agent

import (
	"log/slog"
	"slices"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/internal/host"
)

// classes are the devices besides GPUs that go with each GPU. GPUs do not depend on them: a class
// that cannot be given is reported, and containers get their GPUs without it.
type classes struct {
	node   host.Root
	dir    string // of the CDI specs
	log    *slog.Logger
	files  map[cdi.Class]*cdi.File
	logged map[cdi.Class]string // why one is not given with GPUs now

	built []cdi.Class // those that the node has
	given []string    // the CDI names of those that containers get
}

func newClasses(cfg Config, log *slog.Logger) classes {
	return classes{node: cfg.Node, dir: cfg.CDIDir, log: log, files: map[cdi.Class]*cdi.File{}, logged: map[cdi.Class]string{}}
}

// write puts the specs of the wanted classes on disk.
func (c *classes) write(wanted []cdi.Class) {
	c.built, c.given = nil, nil
	for _, class := range wanted {
		err := c.writeOne(class)
		if err == nil {
			c.given = append(c.given, cdi.WithGPUs(class))
		}
		c.report(class, err)
	}
}

func (c *classes) writeOne(class cdi.Class) error {
	spec, err := cdi.BuildClass(cdi.AgentKindOf(class), class, c.node)
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
	return err
}

// report logs once why a class is not given.
func (c *classes) report(class cdi.Class, err error) {
	now := trouble(err)
	if now != "" && now != c.logged[class] {
		c.log.Warn("class not given with GPUs", "class", class, "reason", now)
	}
	c.logged[class] = now
}

// touched returns whether there is something to write: a class came or went, or its spec or one of
// its nodes changed.
func (c *classes) touched(wanted []cdi.Class) bool {
	var present []cdi.Class
	for _, class := range wanted {
		if _, err := cdi.BuildClass(cdi.AgentKindOf(class), class, c.node); err == nil {
			present = append(present, class)
			if file := c.files[class]; file == nil || file.Touched() {
				return true
			}
		}
	}
	return !slices.Equal(present, c.built)
}
