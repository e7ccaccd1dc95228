package docs

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// Step is an sh block of a document, with its expected output.
type Step struct {
	Command string
	// Output is the indented block between this sh block and the next; empty: none.
	Output string
}

// Steps returns the sh blocks of a document. document is a path in the repository. It is an error if there is no such
// block.
func Steps(ctx context.Context, document string) ([]Step, error) {
	text, err := read(ctx, document)
	if err != nil {
		return nil, err
	}
	steps := parseSteps(text)
	if len(steps) == 0 {
		return nil, fmt.Errorf("%s has no sh block; update the document or the test", document)
	}
	return steps, nil
}

func parseSteps(text string) (steps []Step) {
	var inBlock, isCommand bool
	for line := range strings.Lines(text) {
		fence, fenced := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fenced:
			inBlock = !inBlock
			if isCommand = inBlock && fence == "sh"; isCommand {
				steps = append(steps, Step{})
			}
		case isCommand:
			steps[len(steps)-1].Command += line
		case !inBlock && len(steps) > 0 && strings.HasPrefix(line, "    "):
			steps[len(steps)-1].Output += line[4:]
		}
	}
	return steps
}

// CheckOutput returns an error unless output has the lines of want in this order, possibly with others between them. In
// want, … stands for any text; the width of space between words is ignored.
func CheckOutput(output, want string) error {
	rest := strings.Split(output, "\n")
	for line := range strings.Lines(want) {
		pattern := regexp.QuoteMeta(words(line))
		pattern = "^" + strings.ReplaceAll(pattern, "…", ".*") + "$"
		matching, err := regexp.Compile(pattern)
		if err != nil {
			return fmt.Errorf("expected line %q: %w", line, err)
		}
		for len(rest) > 0 && !matching.MatchString(words(rest[0])) {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			return fmt.Errorf("the output lacks the line %q, or has it in another order", strings.TrimSpace(line))
		}
		rest = rest[1:]
	}
	return nil
}

func words(line string) string { return strings.Join(strings.Fields(line), " ") }
