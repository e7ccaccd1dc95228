// Package docs takes the commands and manifests out of the documents, so that
// tests run what readers will.
package docs

import (
	"context"
	"fmt"
	"strings"
)

// Blocks returns the fenced blocks of a language in one section of a document.
// document is its path in the repository, section its heading without marks.
func Blocks(ctx context.Context, document, section, language string) ([]string, error) {
	text, err := read(ctx, document)
	if err != nil {
		return nil, err
	}
	var (
		blocks  []string
		here    bool
		open    bool // within a block
		wanted  bool // that one
		current strings.Builder
	)
	for line := range strings.Lines(text) {
		fence, fenced := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fenced && open:
			open = false
			if wanted {
				blocks = append(blocks, current.String())
			}
		case fenced:
			open, wanted = true, here && fence == language
			current.Reset()
		case open:
			current.WriteString(line)
		case strings.HasPrefix(line, "#"):
			here = strings.TrimSpace(strings.TrimLeft(line, "#")) == section
		}
	}
	if len(blocks) == 0 {
		return nil, fmt.Errorf("%s has no %s block under %q: do test and document still agree?", document, language, section)
	}
	return blocks, nil
}
