package allocator

import (
	"errors"
	"fmt"
)

const (
	// maxProblems bounds how many problems one error describes. The kubelet stores the
	// message in the pod's status, and a request names up to 4 MiB of IDs.
	maxProblems = 10
	// maxIDShown bounds how many bytes of an ID from a request an error quotes.
	maxIDShown = 64
)

// problems collects what is wrong with a request. Its error describes the first
// maxProblems and counts the others, of which errors.Is still finds each kind.
type problems struct {
	described []error
	kinds     []error // the sentinels of the others, each once
	more      int
}

// add describes a problem of a kind, one of the sentinels of this package.
func (p *problems) add(kind error, format string, args ...any) {
	if len(p.described) < maxProblems {
		p.described = append(p.described, fmt.Errorf("%w: "+format, append([]any{kind}, args...)...))
		return
	}
	p.more++
	if !errors.Is(errors.Join(p.kinds...), kind) {
		p.kinds = append(p.kinds, kind)
	}
}

// err returns all problems as one error, nil if there are none.
func (p *problems) err() error {
	if p.more == 0 {
		return errors.Join(p.described...)
	}
	return errors.Join(append(p.described, fmt.Errorf("and %d more: %w", p.more, errors.Join(p.kinds...)))...)
}

// shown quotes an ID from a request, shortened if it is longer than any real one.
func shown(id string) string {
	if len(id) > maxIDShown {
		return fmt.Sprintf("%q… (%d bytes)", id[:maxIDShown], len(id))
	}
	return fmt.Sprintf("%q", id)
}
