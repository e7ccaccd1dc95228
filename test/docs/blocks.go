// Package docs extracts code blocks from the documents, and checks command output and tables against them, for tests.
package docs

import (
	"context"
	"fmt"
	"strings"
)

// Blocks returns the fenced code blocks of a language in a section of a document. document is a path in the repository,
// section a heading without its leading #. The section ends at the next heading of any level. It is an error if there
// is no such block.
func Blocks(ctx context.Context, document, section, language string) ([]string, error) {
	text, err := read(ctx, document)
	if err != nil {
		return nil, err
	}
	var (
		blocks    []string
		inSection bool
		inBlock   bool
		matches   bool // the block is in the section and the language
		current   strings.Builder
	)
	for line := range strings.Lines(text) {
		fence, fenced := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fenced && inBlock:
			inBlock = false
			if matches {
				blocks = append(blocks, current.String())
			}
		case fenced:
			inBlock, matches = true, inSection && fence == language
			current.Reset()
		case inBlock:
			current.WriteString(line)
		case strings.HasPrefix(line, "#"):
			inSection = strings.TrimSpace(strings.TrimLeft(line, "#")) == section
		}
	}
	if len(blocks) == 0 {
		return nil, fmt.Errorf("%s has no %s block in section %q; update the document or the test", document, language, section)
	}
	return blocks, nil
}
