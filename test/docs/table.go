package docs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpucdi/gpucdi/test/node/tools"
)

// CheckTable returns an error unless a document has a table with exactly these rows, and an empty line after it. rows
// are Markdown lines, each with its newline. document is a path in the repository.
func CheckTable(ctx context.Context, document, rows string) error {
	text, err := read(ctx, document)
	if err != nil {
		return err
	}
	if !strings.Contains(text, "---|\n"+rows+"\n") {
		return fmt.Errorf("%s has no table of exactly these rows:\n%s", document, rows)
	}
	return nil
}

// read returns the text of a document.
func read(ctx context.Context, document string) (string, error) {
	module, err := tools.ModuleDir(ctx)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(module), document))
	if err != nil {
		return "", fmt.Errorf("reading a document: %w", err)
	}
	return string(text), nil
}
