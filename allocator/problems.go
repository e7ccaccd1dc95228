package allocator

import (
	"errors"
	"fmt"
)

const (
	// maxProblems bounds how many problems an error describes. The kubelet stores the message in the pod status, and a
	// request can contain 4 MiB of IDs.
	maxProblems = 10
	// maxIDShown bounds how many bytes of an ID an error quotes.
	maxIDShown = 64
)

// problems collects the problems of a request. Its error describes the first maxProblems, counts the others, and wraps
// the sentinels of all.
type problems struct {
	described []error
	kinds     []error // sentinels of the others, without duplicates
	more      int
}

// add adds a problem that wraps kind, a sentinel of this package.
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

// quoteID quotes an ID from a request, truncated to maxIDShown.
func quoteID(id string) string {
	if len(id) > maxIDShown {
		return fmt.Sprintf("%q… (%d bytes)", id[:maxIDShown], len(id))
	}
	return fmt.Sprintf("%q", id)
}
