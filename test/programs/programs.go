// Package programs builds programs once in each process.
package programs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Programs are executables that tests put into many directories. To build them takes seconds even if the compiler's cache
// has all packages, because they are linked again. Its methods are safe for concurrent use.
type Programs struct {
	names []string
	build func(ctx context.Context, dir string) error

	mu       sync.Mutex
	contents [][]byte // in the order of names; nil before the first successful build
}

// New returns the programs with these names. build builds them into a directory.
func New(build func(ctx context.Context, dir string) error, names ...string) *Programs {
	return &Programs{names: names, build: build}
}

// Put puts the programs into a directory. The first call builds them.
func (p *Programs) Put(ctx context.Context, dir string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.contents == nil {
		if err := p.read(ctx); err != nil {
			return err
		}
	}
	for i, name := range p.names {
		// A process that another goroutine starts inherits files that this process has open. Until it executes its own
		// program, a file that is open for writing cannot be executed.
		install := exec.CommandContext(ctx, "install", "--mode=755", "/dev/stdin", filepath.Join(dir, name))
		install.Stdin = bytes.NewReader(p.contents[i])
		if out, err := install.CombinedOutput(); err != nil {
			return fmt.Errorf("installing %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

// read builds the programs, and sets contents.
func (p *Programs) read(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "programs-")
	if err != nil {
		return fmt.Errorf("building %q: %w", p.names, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := p.build(ctx, dir); err != nil {
		return err
	}
	var contents [][]byte
	for _, name := range p.names {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("building %q: %w", p.names, err)
		}
		contents = append(contents, content)
	}
	p.contents = contents
	return nil
}
